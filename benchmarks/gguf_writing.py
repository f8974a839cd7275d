"""What the scripts that write GGUF files of random weights share: the sizes of a shape, and the end of a file."""

import gguf

from pellucid.config import ModelConfig


def add_shape(
    writer: gguf.GGUFWriter, config: ModelConfig, num_layers: int, intermediate_size: int
) -> None:
    """The sizes of a decoder whose layers are alike.

    Args:
        num_layers: that the file has.
        intermediate_size: of a dense feed-forward part, or of one expert.
    """
    attention = config.layers[0].attention
    assert attention.rope is not None
    writer.add_block_count(num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(intermediate_size)
    writer.add_head_count(attention.num_heads)
    writer.add_head_count_kv(attention.num_kv_heads)
    writer.add_key_length(attention.head_dim)
    writer.add_value_length(attention.head_dim)
    writer.add_rope_freq_base(attention.rope.theta)
    writer.add_rope_dimension_count(attention.rope.dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)


def write_out(writer: gguf.GGUFWriter) -> None:
    """Writes all that was added, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
