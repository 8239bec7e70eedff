# SPDX-License-Identifier: Apache-2.0
"""Which rank of which job this process is: from torchrun's, Slurm's and MPI's variables."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from harp.collectives.store import TcpStore

PORT = 29411  # for MPI without MASTER_PORT
# Slurm jobs of one host must not meet: the port follows from the job's number.
SLURM_PORT_FIRST, SLURM_PORTS = 20000, 10000
SECRET = "HARP_COLL_SECRET"  # a variable's name
# Rank, world, ranks on this host: the first pair that is set counts.
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except KeyError:
        raise ValueError(f"{name} is not set") from None
    except ValueError:
        raise ValueError(f"{name}={environment[name]!r} is no number") from None


def first_host(nodelist: str) -> str:
    """The first name of Slurm's host list: "node[07-09,12],login" starts with node07."""
    match = re.match(r"([^,\[\]]+)(?:\[([^\]]*)\]([^,\[\]]*))?", nodelist)
    if not match:
        raise ValueError(f"SLURM_JOB_NODELIST={nodelist!r} has no host")
    prefix, ranges, suffix = match.groups()
    if ranges is None:
        return prefix
    return prefix + re.split("[-,]", ranges)[0] + (suffix or "")


@dataclass(frozen=True)
class Job:
    """This process in its job, and the address at which rank 0 serves the key-value store.

    Parameters
    ----------
    rank, world
        This process's number, and their count.
    address, port
        Where rank 0 serves the store.
    name
        Of the job's group.
    secret
        Of the store; "": none.
    """

    rank: int
    world: int
    address: str
    port: int
    name: str
    secret: str = ""

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read RANK and WORLD_SIZE (torchrun), else MPI's variables, else Slurm's, else return a
        world of one.

        MASTER_ADDR and MASTER_PORT override what Slurm and MPI imply, HARP_COLL_PORT overrides
        MASTER_PORT. HARP_COLL_SECRET: only processes that have it may use the store.

        Parameters
        ----------
        environment
            The variables; None: this process's.

        Returns
        -------
        Job
            The job.

        Raises
        ------
        ValueError
            A variable is missing or wrong.
        """
        env = os.environ if environment is None else environment
        rank, world, address, port, name = cls._found(env)
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} is not one of a world of {world}")
        address = env.get("MASTER_ADDR") or address
        if "HARP_COLL_PORT" in env:
            port = _number(env, "HARP_COLL_PORT")
        if world > 1 and not address:
            raise ValueError(
                "the job has several hosts and MASTER_ADDR is not set: set it to rank 0's address"
            )
        if not 0 < port < 65536:
            raise ValueError(f"port {port} of the key-value store is not 1 to 65535")
        return cls(rank, world, address, port, name, env.get(SECRET, ""))

    @staticmethod
    def _found(env: Mapping[str, str]) -> tuple[int, int, str, int, str]:
        port = _number(env, "MASTER_PORT") if env.get("MASTER_PORT") else 0
        if "RANK" in env and "WORLD_SIZE" in env:
            # torchrun's agent may serve torch's own store at MASTER_PORT.
            if env.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True":
                port += 1
            name = f"torch.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            return _number(env, "RANK"), _number(env, "WORLD_SIZE"), "", port or PORT, name
        for rank, world, local in _MPI:
            if rank in env and world in env:
                alone = env.get(local) == env[world]
                address = "127.0.0.1" if alone else ""
                return _number(env, rank), _number(env, world), address, port or PORT, "mpi"
        if "SLURM_PROCID" in env and "SLURM_NTASKS" in env:
            job, step = env.get("SLURM_JOB_ID", "0"), env.get("SLURM_STEP_ID", "0")
            nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
            if not port:
                port = SLURM_PORT_FIRST + (int(job) + int(step)) % SLURM_PORTS
            return (
                _number(env, "SLURM_PROCID"),
                _number(env, "SLURM_NTASKS"),
                first_host(nodes) if nodes else "",
                port,
                f"slurm.{job}.{step}",
            )
        return 0, 1, "127.0.0.1", port or PORT, "alone"

    def store(self, timeout_s: float = 300) -> TcpStore:
        """Open the job's store, which rank 0 serves.

        Parameters
        ----------
        timeout_s
            As of TcpStore, whose errors it raises.

        Returns
        -------
        TcpStore
            The store.
        """
        return TcpStore(
            self.address,
            self.port,
            serve=self.rank == 0,
            secret=self.secret,
            timeout_s=timeout_s,
        )
