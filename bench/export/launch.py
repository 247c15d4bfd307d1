"""How many ranks on how many nodes, as launchers want to be told."""

from bench.cell import Cell

# What a user of several nodes must put in.
HOST, NODE = "HOST_OF_NODE_0", "NUMBER_OF_THIS_NODE"
PORT = 29500


def nodes(cell: Cell) -> int:
    """Return on how many nodes the ranks of a cell are; of an emulated one, on how many they would be."""
    if cell.emulation is None:
        return cell.num_nodes
    return max(cell.num_nodes, -(-cell.world_size // cell.emulation.gpus_per_node))


def ranks_per_node(cell: Cell) -> int:
    """Return the ranks of one node."""
    return -(-cell.world_size // nodes(cell))


def torchrun(cell: Cell, script: str) -> str:
    """Return the command that starts ``script`` on every rank; on several nodes it is given on each."""
    where = f" --nnodes={nodes(cell)} --node_rank={NODE} --master_addr={HOST}" if nodes(cell) > 1 else ""
    return f"torchrun{where} --nproc_per_node={ranks_per_node(cell)} --master_port={PORT} {script}"


def several_nodes(cell: Cell) -> list[str]:
    """Return what must be replaced in a command, in a sentence; nothing for one node."""
    if nodes(cell) == 1:
        return []
    return [f"On each of the {nodes(cell)} nodes, with {HOST} replaced, and {NODE} by 0 to {nodes(cell) - 1}."]
