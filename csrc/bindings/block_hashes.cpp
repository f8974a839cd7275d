// Python's hash_blocks.
#include "block_hashes.h"

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bindings/bindings.h"
#include "require.h"
#include "sha256.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

Sha256Compress compress_of_this_machine() {
  static const Sha256Compress fast = sha256_compress_by_instructions();
  return fast != nullptr ? fast : sha256_compress_portable;
}

// Of a list or a tuple, whose items are borrowed: a prompt has thousands.
std::int64_t token_at(PyObject* token_ids, bool is_list, Py_ssize_t index) {
  PyObject* const item =
      is_list ? PyList_GetItem(token_ids, index) : PyTuple_GetItem(token_ids, index);
  const long long token = item == nullptr ? -1 : PyLong_AsLongLong(item);
  if (token == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return token;
}

nb::bytes hash_blocks(const nb::bytes& parent_hash, const nb::object& token_ids, int block_size) {
  require(parent_hash.size() == kSha256Bytes, "parent_hash: has ", parent_hash.size(),
          " bytes, and must have ", kSha256Bytes);
  require(block_size >= 1, "block_size=", block_size, ": must be at least 1");
  PyObject* const tokens = token_ids.ptr();
  const bool is_list = PyList_Check(tokens) != 0;
  if (!is_list && PyTuple_Check(tokens) == 0) {
    throw nb::type_error("token_ids: must be a list or a tuple");
  }
  const auto size = static_cast<std::size_t>(block_size);
  const std::size_t num_blocks = nb::len(token_ids) / size;
  BlockHashes hashes(compress_of_this_machine(),
                     static_cast<const std::uint8_t*>(parent_hash.data()), size);
  std::vector<std::int64_t> block(size);
  std::vector<std::uint8_t> digests;
  for (std::size_t start = 0; start < num_blocks * size; start += size) {
    for (std::size_t i = 0; i < size; ++i) {
      block[i] = token_at(tokens, is_list, static_cast<Py_ssize_t>(start + i));
    }
    hashes.add(block.data());
    digests.insert(digests.end(), hashes.hash(), hashes.hash() + kSha256Bytes);
  }
  return nb::bytes(digests.data(), digests.size());
}

}  // namespace

void bind_block_hashes(nb::module_& m) {
  m.def("hash_blocks", &hash_blocks, "parent_hash"_a, "token_ids"_a, "block_size"_a,
        nb::sig("def hash_blocks(parent_hash: bytes, token_ids: list[int] | tuple[int, ...], "
                "block_size: int) -> bytes"),
        "The hashes of all full blocks, 32 bytes each, one after the other. A hash is SHA-256 of "
        "the hash of the block before (of the first block: `parent_hash`) and of the block's "
        "tokens as 8 bytes each, the lowest first.");
}

}  // namespace pellucid
