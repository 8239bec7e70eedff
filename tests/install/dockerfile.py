# SPDX-License-Identifier: Apache-2.0
"""A Dockerfile's stages, run without a container runtime: each in a copy of a Debian 12.

It knows the instructions that the project's Dockerfile has; any other is an error.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from debian import Debian


@dataclass
class Stage:
    """FROM to the next FROM."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, its words


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction and its words, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            instruction, _, words = line.partition(" ")
            yield instruction, words.strip()


def parse(text: str, arguments: dict[str, str]) -> list[Stage]:
    """The stages; ARG before the first of them may be overridden."""
    stages: list[Stage] = []
    known: dict[str, str] = {}
    for instruction, words in instructions(text):
        if instruction == "ARG" and not stages:
            name, _, default = words.partition("=")
            known[name] = arguments.get(name, default)
        elif instruction == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", words)
            assert match, words
            base = re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], match[1])
            stages.append(Stage(base, match[2]))
        else:
            assert instruction in ("RUN", "COPY", "WORKDIR", "ENTRYPOINT"), instruction
            stages[-1].steps.append((instruction, words))
    return stages


class Image:
    """A stage that has run."""

    def __init__(self, debian: Debian) -> None:
        self.debian = debian
        self.folder = "/"  # WORKDIR
        self.entrypoint: list[str] = []


class Builder:
    """Runs stages. `run` may replace the RUN step of a stage by other means."""

    def __init__(
        self,
        base: Path,
        work: Path,
        context: Path,
        env: dict[str, str],
        replaced: dict[str, Callable[[Image], None]],
    ) -> None:
        self._base, self._work, self._context, self._env = base, work, context, env
        self._replaced = replaced
        self.images: dict[str, Image] = {}

    def build(self, stage: Stage) -> Image:
        """Run a stage's steps."""
        before = self.images.get(stage.base)
        assert before or re.fullmatch(r"debian:12(-slim)?", stage.base), stage.base
        root = self._work / stage.name
        image = Image(Debian(before.debian.root if before else self._base, root))
        self.images[stage.name] = image
        for instruction, words in stage.steps:
            if instruction == "RUN":
                self._run(image, words)
            elif instruction == "COPY":
                self._copy(image, words)
            elif instruction == "WORKDIR":
                image.folder = words
                (root / words.lstrip("/")).mkdir(parents=True, exist_ok=True)
            else:
                image.entrypoint = json.loads(words)
        return image

    def _run(self, image: Image, words: str) -> None:
        if words in self._replaced:
            self._replaced.pop(words)(image)
            return
        image.debian.run("sh", "-c", f"cd {image.folder} && {words}", env=self._env)

    def _copy(self, image: Image, words: str) -> None:
        match = re.fullmatch(r"(?:--from=(\S+) )?(\S+) (\S+)", words)
        assert match, words
        stage, source, target = match.groups()
        if stage is None:
            assert (source, target) == (".", "."), words
            assert (self._context / ".dockerignore").is_file()
            return  # the whole tree: what is made of it is replaced
        origin = self.images[stage].debian.root / source.lstrip("/")
        assert source.endswith("/"), words
        assert target.endswith("/"), words
        assert origin.is_dir(), f"COPY {words}: there is no {origin}"
        goal = image.debian.root / target.lstrip("/")
        assert any(origin.iterdir()), f"COPY {words}: empty"
        shutil.copytree(origin, goal, symlinks=True, dirs_exist_ok=True)

    def close(self) -> None:
        """Remove the images."""
        for image in self.images.values():
            image.debian.close()
