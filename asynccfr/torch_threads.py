"""How many torch threads a thread uses, told apart from how many the process uses."""

import threading

import torch


def use_threads(count: int) -> None:
    """Gives the calling thread `count` torch threads, and leaves every other thread its own."""
    # A thread takes torch's process-wide number at its first use of torch, and setting a
    # thread's number sets the process-wide one too. So take it first, or it may come later and
    # undo the setting; and give it back, from a thread that then ends.
    process_wide = torch.get_num_threads()
    torch.set_num_threads(count)
    restorer = threading.Thread(target=torch.set_num_threads, args=(process_wide,))
    restorer.start()
    restorer.join()
