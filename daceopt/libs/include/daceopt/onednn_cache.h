// Primitives of oneDNN: created once per shape, executed from any thread.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>

#include "daceopt/onednn.h"
#include "daceopt/scratch.h"

namespace daceopt::detail {

using dnnl::memory;
using Key = std::vector<int64_t>;

inline memory::data_type data_type_of(Element type) {
    constexpr memory::data_type known[] = {memory::data_type::f32, memory::data_type::bf16, memory::data_type::u8, memory::data_type::s8};
    return known[static_cast<int>(type)];
}

// Whether oneDNN multiplies bfloat16 in units of this CPU: elsewhere it emulates them, or has reference kernels only.
inline bool has_bfloat16_units() {
    static const bool found = [] {
        const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
        const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
        return (isa & wanted) == wanted;
    }();
    return found;
}

inline const dnnl::engine& engine() {
    static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
    return instance;
}

inline dnnl::stream& stream() {
    thread_local dnnl::stream instance(engine());
    return instance;
}

inline size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

inline void append(Key& key, const Sizes& values) {
    key.push_back(static_cast<int64_t>(values.size()));
    key.insert(key.end(), values.begin(), values.end());
}

inline void append(Key& key, const Tensor& x) {
    key.push_back(x.data != nullptr);
    if (!x.data) return;
    key.push_back(static_cast<int64_t>(x.type));
    key.push_back(x.is_blocked);
    append(key, x.dims);
    append(key, x.strides);
}

inline bool same_layout(const Tensor& x, const std::vector<int64_t>& strides) {
    for (size_t d = 0; d < x.dims.size(); ++d)
        if (x.dims[d] > 1 && x.strides[d] != strides[d]) return false;
    return true;
}

// Strides of dims stored in the given order, outermost first.
inline std::vector<int64_t> dense(const std::vector<int64_t>& dims, const std::vector<size_t>& order) {
    std::vector<int64_t> strides(dims.size());
    int64_t step = 1;
    for (size_t i = order.size(); i-- > 0;) {
        strides[order[i]] = step;
        step *= dims[order[i]];
    }
    return strides;
}

// The same tensor in blocks of kBlock channels, the last of which may be filled up.
inline memory::desc blocked(const memory::dims& dims, memory::data_type type) {
    using tag = memory::format_tag;
    static_assert(kBlock == 8 || kBlock == 16, "oneDNN's kernels know no other blocks");
    const tag wide[] = {tag::nCw16c, tag::nChw16c, tag::nCdhw16c}, narrow[] = {tag::nCw8c, tag::nChw8c, tag::nCdhw8c};
    return memory::desc(dims, type, (kBlock == 16 ? wide : narrow)[dims.size() - 3]);
}

// The description of a tensor in memory. Strides along extents of 1 are arbitrary: they are set so that oneDNN recognises
// channels-last, or else channels-first, memory.
inline memory::desc describe(const Tensor& x) {
    if (x.is_blocked) return blocked(x.dims, data_type_of(x.type));
    std::vector<size_t> first(x.dims.size()), last;
    for (size_t d = 0; d < first.size(); ++d) first[d] = d;
    last = first;
    if (last.size() > 2) {
        last.erase(last.begin() + 1);
        last.push_back(1);
    }
    for (const auto& order : {last, first}) {
        const auto strides = dense(x.dims, order);
        if (same_layout(x, strides)) return memory::desc(x.dims, data_type_of(x.type), strides);
    }
    return memory::desc(x.dims, data_type_of(x.type), x.strides);
}

// (out, in, ...), or (groups, out, in, ...).
inline memory::desc describe_weights(const Tensor& w, int64_t groups) {
    memory::dims dims = w.dims, strides = w.strides;
    if (groups > 1) {
        dims[0] /= groups;
        dims.insert(dims.begin(), groups);
        strides.insert(strides.begin(), strides[0] * dims[1]);
    }
    return memory::desc(dims, data_type_of(w.type), strides);
}

// The same tensor with its channels innermost.
inline memory::desc channels_last(const memory::desc& desc) {
    std::vector<size_t> order{0};
    for (size_t d = 2; d < desc.get_dims().size(); ++d) order.push_back(d);
    order.push_back(1);
    return memory::desc(desc.get_dims(), desc.get_data_type(), dense(desc.get_dims(), order));
}

// The same tensor with its channels outside of the spatial dimensions.
inline memory::desc channels_first(const memory::desc& desc) {
    std::vector<size_t> order(desc.get_dims().size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    return memory::desc(desc.get_dims(), desc.get_data_type(), dense(desc.get_dims(), order));
}

inline memory::desc any(const memory::desc& desc) {
    return memory::desc(desc.get_dims(), desc.get_data_type(), memory::format_tag::any);
}

// One copy into another layout or type.
struct Copy {
    memory::desc from, to;
    std::shared_ptr<dnnl::reorder> reorder;

    Copy(const memory::desc& from, const memory::desc& to)
        : from(from), to(to), reorder(std::make_shared<dnnl::reorder>(dnnl::reorder::primitive_desc(engine(), from, engine(), to))) {}

    void run(const void* source, void* target) const {
        memory given(from, engine(), const_cast<void*>(source)), wanted(to, engine(), target);
        reorder->execute(stream(), given, wanted);
        stream().wait();
    }
};

// A tensor of a call: the caller's description, and the one that the primitive wants.
struct Argument {
    int name;  // DNNL_ARG_...
    memory::desc given, wanted;
    bool output;
    std::vector<Copy> copies;  // one after the other, from the one to the other; none where they are the same
    size_t bytes, between;     // of what is wanted, and of what stands between two copies

    Argument(int name, const memory::desc& given, const memory::desc& wanted, bool output)
        : name(name), given(given), wanted(wanted), output(output), bytes(wanted.get_size()), between(0) {
        const memory::desc middle = output ? memory::desc() : turned(given, wanted);
        const memory::desc& first = middle.is_zero() ? given : middle;
        if (!middle.is_zero()) {
            between = middle.get_size();
            copies.emplace_back(given, middle);
        }
        if (first != wanted) copies.emplace_back(output ? wanted : first, output ? first : wanted);
    }

    bool is_kept(const WeightMemory* kept) const { return kept && name == DNNL_ARG_WEIGHTS && (!copies.empty() || kept->has_factors()); }
    bool is_copied(const WeightMemory* kept) const { return !copies.empty() && !is_kept(kept); }
    size_t room() const { return padded(bytes) + padded(between); }

    // What is wanted, in `place`; what stands between two copies has its place behind.
    memory copied(void* data, char* place) const {
        if (!output) {
            void* middle = place + padded(bytes);
            for (size_t i = 0; i < copies.size(); ++i)
                copies[i].run(i ? middle : data, i + 1 < copies.size() ? middle : place);
        }
        return memory(wanted, engine(), place);
    }

private:
    // Weights with large windows, of which oneDNN copies pairs of channels one by one: 512x256x7x7 takes 11.3 ms, in two steps 2.0
    // (docs/decisions/dense-libraries.md).
    static memory::desc turned(const memory::desc& given, const memory::desc& wanted) {
        constexpr int64_t kLarge = 25;
        const auto narrow = memory::data_type::bf16;
        const memory::dims dims = given.get_dims();
        if (given.get_data_type() != narrow || wanted.get_data_type() != narrow || dims.size() < 4 || wanted.get_inner_nblks() < 2) return {};
        if (dims[dims.size() - 1] * dims[dims.size() - 2] < kLarge || given != channels_first(given)) return {};
        return channels_last(given);
    }
};

struct Entry {
    dnnl::primitive primitive;
    memory::desc scratchpad;
    std::vector<Argument> arguments;
    std::string implementation;
    std::shared_ptr<Entry> after;  // what is left to do, where no fast kernel does all of it
    bool clamps = false;           // negative numbers are 0 when it ends
    bool accumulates = false;      // adds to what stands where its result will

    void add(int name, const memory::desc& given, const memory::desc& wanted, bool output) {
        arguments.emplace_back(name, given, wanted, output);
    }

    // Weights are copied into memory that is `kept`, where there is some.
    void run(const std::vector<void*>& data, WeightMemory* kept = nullptr) const {
        const size_t own = padded(scratchpad.get_size());
        size_t total = own;
        for (const Argument& argument : arguments) total += argument.is_copied(kept) ? argument.room() : 0;
        char* next = total ? static_cast<char*>(scratch(Purpose::kCall, total)) : nullptr;
        std::unordered_map<int, memory> operands;
        if (own) operands[DNNL_ARG_SCRATCHPAD] = memory(scratchpad, engine(), std::exchange(next, next + own));
        for (size_t i = 0; i < arguments.size(); ++i) {
            const Argument& argument = arguments[i];
            if (argument.is_copied(kept))
                operands[argument.name] = argument.copied(data[i], std::exchange(next, next + argument.room()));
            else
                operands[argument.name] = argument.is_kept(kept) ? prepared(argument, data[i], kept) : memory(argument.given, engine(), data[i]);
        }
        primitive.execute(stream(), operands);
        for (size_t i = 0; i < arguments.size(); ++i) finish(arguments[i], operands[arguments[i].name], data[i]);
    }

private:
    static memory prepared(const Argument& argument, void* data, WeightMemory* kept) {
        const auto fill = [&](void* place, const void* source) { Copy(argument.given, argument.wanted).run(source, place); };
        return memory(argument.wanted, engine(), kept->prepared({&argument.wanted, argument.bytes, data, argument.given.get_size(), fill}));
    }

    static void finish(const Argument& argument, memory& computed, void* data) {
        if (argument.output && !argument.copies.empty()) argument.copies.front().run(computed.get_data_handle(), data);
    }
};

// Two threads that miss at once both build; the first to store wins. Entries are never dropped, so references stay valid.
class Cache {
public:
    const Entry& get(const Key& key, const std::function<std::shared_ptr<Entry>()>& make) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            auto found = entries_.find(key);
            if (found != entries_.end()) return *found->second;
        }
        auto entry = make();
        std::lock_guard<std::mutex> lock(mutex_);
        return *entries_.emplace(key, std::move(entry)).first->second;
    }

private:
    std::mutex mutex_;
    std::map<Key, std::shared_ptr<Entry>> entries_;
};

// Classes of kernels by their names: code made for the shape; im2col with a product, which takes about twice as long
// (docs/decisions/dense-libraries.md); reference kernels, which are orders of magnitude slower than any copy.
enum class Speed { kMade, kProduct, kReference };

inline Speed speed_of(const std::string& implementation) {
    if (implementation.find("ref") != std::string::npos) return Speed::kReference;
    return implementation.find("gemm") != std::string::npos ? Speed::kProduct : Speed::kMade;
}

inline dnnl::primitive_attr attributes(const dnnl::post_ops& operations = {}) {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attr.set_post_ops(operations);
    return attr;
}

template <typename F>
void guarded(const char* where, F&& body) {
    try {
        body();
    } catch (const std::exception& error) {  // dnnl::error, std::bad_alloc
        fail(where, error.what());
    }
}

}  // namespace daceopt::detail
