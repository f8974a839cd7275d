"""The processes that MPI has started together, which have a share of a model's weights each."""

import atexit
import ctypes
import os
import threading
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

from pellucid.backends.native import Exchange
from pellucid.facts.cores import core_shares, own_cpus


@dataclass(frozen=True)
class Ranks:
    """This process among the others.

    Args:
        communicator: of mpi4py; for what Python says while a model loads.
        exchange: for what steps compute.
        num_on_machine: ranks that share this machine.
        is_near_first: whether rank 0 is one of them.
    """

    communicator: Any
    exchange: Exchange
    num_on_machine: int
    is_near_first: bool
    _claimed: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rank(self) -> int:
        return self.exchange.rank

    def claim(self) -> None:
        """Takes all ranks for a model.

        Raises:
            ValueError: they have loaded one, or tried to: the other ranks compute for it, or have ended.
        """
        if not self._claimed.acquire(blocking=False):
            raise ValueError(
                f"tensor_parallel_size={self.exchange.num_ranks}: the processes that mpirun has started load one model,"
                " and have done so; start others for another model"
            )

    def abort_at_exit(self) -> None:
        """Has MPI end all processes when this one ends: it would wait for those that have gone."""
        atexit.register(self.communicator.Abort, 1)


@cache
def join_ranks(num_ranks: int) -> Ranks:
    """Joins the processes of MPI, the first time by starting MPI, and keeps to this process's share of the cores.

    Raises:
        ValueError: mpi4py is not installed, or MPI has started another number of processes.
    """
    if find_spec("mpi4py") is None:
        raise ValueError(
            f"tensor_parallel_size={num_ranks}: needs mpi4py and an MPI with mpirun: pip install 'pellucid[mpi]'"
        )
    from mpi4py import MPI  # which starts it

    world = MPI.COMM_WORLD
    if world.size != num_ranks:
        raise ValueError(
            f"tensor_parallel_size={num_ranks}: MPI has started {world.size}; start all of them by"
            f" mpirun -n {num_ranks} --bind-to none"
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ValueError(
            f"tensor_parallel_size={num_ranks}: this MPI is not to be called from several threads"
        )
    on_machine = world.Split_type(MPI.COMM_TYPE_SHARED)
    _take_cores(on_machine)
    of_steps = world.Dup()
    of_steps.Set_errhandler(MPI.ERRORS_RETURN)
    library = ctypes.CDLL(MPI.__file__)  # and what that is linked to
    exchange = Exchange(
        world.rank,
        world.size,
        gather=_address(library.MPI_Iallgatherv),
        test=_address(library.MPI_Test),
        communicator=of_steps.handle,
        number_type=MPI.FLOAT.handle,
    )
    return Ranks(world, exchange, on_machine.size, 0 in on_machine.allgather(world.rank))


def planned_ranks(num_ranks: int) -> Ranks:
    """Processes that nobody has started, to plan the memory of one: of the last, whose share is the largest. They
    exchange nothing, so no step can be computed. Each has a machine of its own."""
    rank = num_ranks - 1
    exchange = Exchange(rank, num_ranks, gather=1, test=1, communicator=0, number_type=0)
    exchange.fail()  # so that nothing is called
    return Ranks(None, exchange, num_on_machine=1, is_near_first=True)


def _take_cores(on_machine: Any) -> None:
    """Divides the cores of this machine among its ranks, unless MPI has bound each to cores of its own."""
    if not hasattr(os, "sched_setaffinity"):
        return
    all_cores = on_machine.allgather(frozenset(os.sched_getaffinity(0)))
    if len(set(all_cores)) == 1:
        shares = core_shares(own_cpus(), on_machine.size)
        os.sched_setaffinity(0, shares[on_machine.rank])


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
