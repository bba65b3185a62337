"""The native CPU backend: lowers a graph to fused records that one native call walks."""
