"""Bytes of the exchange buffers on one rank, after the size hints of DeepEP 1.2.1."""

from __future__ import annotations

from models.counts import BF16, FP32, SCALE_BLOCK
from models.deployment import Deployment
from models.exchanges import LL_HEADER_BYTES, TOPK_ENTRY_BYTES, nodes_of

# Receive queue lengths in tokens, and the channel's two directions; DeepEP's default configurations
# for 8 ranks over NVLink and for 4 nodes.
NVLINK_QUEUE_TOKENS = 256
RDMA_QUEUE_TOKENS = 128
SMS_PER_CHANNEL = 2


def exchange_buffer_bytes(deployment: Deployment) -> int:
    """The buffer that the deployment's mode needs, once per process: the children of a split batch
    share it."""
    if deployment.a2a.collective:
        return 0
    if deployment.a2a.mode == "low_latency":
        return low_latency_bytes(deployment)
    return normal_bytes(deployment)


def low_latency_bytes(deployment: Deployment) -> int:
    """Two alternating buffers, each with room to send to and to receive from every expert slot M
    tokens, in the larger of the dispatch's and the combine's message."""
    hidden = deployment.model.hidden_size
    scales = -(-hidden // SCALE_BLOCK)
    dispatch = LL_HEADER_BYTES + max(hidden * BF16, hidden + FP32 * scales)
    combine = hidden * BF16 + scales * 2 * BF16
    most = deployment.a2a.max_dispatch_tokens_per_rank
    slots = deployment.slots_per_rank * deployment.ep_size
    send = max(most * dispatch, slots * most * combine)
    receive = slots * most * max(dispatch, combine)
    return 2 * (send + receive)


def normal_bytes(deployment: Deployment) -> int:
    """Queues of every channel: over NVLink from each rank of the node, and across nodes both ways."""
    model = deployment.model
    scales = -(-model.hidden_size // SCALE_BLOCK)
    token = model.hidden_size * BF16 + FP32 * scales + TOPK_ENTRY_BYTES * model.top_k
    channels = max(1, deployment.a2a.num_sms // SMS_PER_CHANNEL)
    local = min(deployment.ep_size, deployment.machine.fabric.gpus_per_node)
    total = channels * local * NVLINK_QUEUE_TOKENS * token
    nodes = nodes_of(deployment)
    if nodes > 1:
        total += 2 * channels * nodes * RDMA_QUEUE_TOKENS * token
    return total
