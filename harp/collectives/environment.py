# SPDX-License-Identifier: Apache-2.0
"""The job of this process and its rank, from torchrun's, MPI's or Slurm's variables."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from harp.collectives.store import TcpStore

PORT = 29411  # without MASTER_PORT
# The job's number determines the port, so that Slurm jobs on one host use different ports.
SLURM_PORT_FIRST, SLURM_PORTS = 20000, 10000
SECRET = "HARP_COLL_SECRET"  # environment variable
# Variables of rank, world and ranks on this host. The first entry whose first two are set applies.
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
        raise ValueError(f"{name}={environment[name]!r} is not a number") from None


def first_host(nodelist: str) -> str:
    """Return the first name of Slurm's host list: node07 of "node[07-09,12],login"."""
    match = re.match(r"([^,\[\]]+)(?:\[([^\]]*)\]([^,\[\]]*))?", nodelist)
    if not match:
        raise ValueError(f"SLURM_JOB_NODELIST={nodelist!r} has no host")
    prefix, ranges, suffix = match.groups()
    if ranges is None:
        return prefix
    return prefix + re.split("[-,]", ranges)[0] + (suffix or "")


@dataclass(frozen=True)
class Job:
    """The rank of this process in its job, and the address of the job's key-value store.

    Parameters
    ----------
    rank, world
        The rank of this process, and the number of ranks.
    address, port
        The address at which rank 0 serves the store.
    name
        The name of the job's group.
    secret
        The store's secret; "": none.
    """

    rank: int
    world: int
    address: str
    port: int
    name: str
    secret: str = ""

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read RANK and WORLD_SIZE (torchrun), else MPI's variables, else Slurm's. Without them,
        the world is one process.

        MASTER_ADDR and MASTER_PORT override the values that follow from Slurm's and MPI's
        variables; HARP_COLL_PORT overrides MASTER_PORT. Only processes with the same
        HARP_COLL_SECRET may use the store.

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
            A variable is missing or invalid.
        """
        env = os.environ if environment is None else environment
        rank, world, address, port, name = cls._detect(env)
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} is not in a world of {world} ranks, numbered from 0")
        address = env.get("MASTER_ADDR") or address
        if "HARP_COLL_PORT" in env:
            port = _number(env, "HARP_COLL_PORT")
        if world > 1 and not address:
            raise ValueError(
                "the job has several hosts, but MASTER_ADDR is not set: set it to rank 0's address"
            )
        if not 0 < port < 65536:
            raise ValueError(f"port {port} of the key-value store is not 1 to 65535")
        return cls(rank, world, address, port, name, env.get(SECRET, ""))

    @staticmethod
    def _detect(env: Mapping[str, str]) -> tuple[int, int, str, int, str]:
        port = _number(env, "MASTER_PORT") if env.get("MASTER_PORT") else 0
        if "RANK" in env and "WORLD_SIZE" in env:
            # torchrun's agent may serve torch's own store at MASTER_PORT.
            if env.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True":
                port += 1
            name = f"torch.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            return _number(env, "RANK"), _number(env, "WORLD_SIZE"), "", port or PORT, name
        for rank, world, local in _MPI:
            if rank in env and world in env:
                is_one_host = env.get(local) == env[world]
                address = "127.0.0.1" if is_one_host else ""
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
        """Open the job's store, which rank 0 serves. Raises TcpStore's errors.

        Parameters
        ----------
        timeout_s
            TcpStore's timeout, in seconds.

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
