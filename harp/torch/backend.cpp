/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.cpp - the torch.distributed backend "harp": c10d's operations over libharp-coll.
 *
 * Theory of operation. Each c10d operation becomes a Plan: one or more calls of libharp-coll on the
 * tensors' memory. A tensor that is not contiguous is replaced by a contiguous copy, and results
 * are copied back at the end. A synchronous operation runs in the caller's thread and returns no
 * Work. An asynchronous one returns a HarpWork, which owns the tensors until its last call is done.
 *
 * Threads. The thread that completes a call invokes the callback, without holding a lock: a thread
 * in wait(), or the library's thread. The callback copies results back and completes the Work. If
 * the application requested a Future, a new thread completes it, because the Future's callbacks may
 * need the GIL and may wait for further operations (torch's PowerSGD hook). Closing a group joins
 * the library's thread, so the closing thread must not hold the GIL.
 *
 * Store. The group uses a clone of the store, because a thread of the application may wait for
 * minutes in the store itself. Each request runs in a separate thread, because a store whose
 * server is stopped or unreachable never answers.
 *
 * Compiled on the user's machine (harp/torch/building.py), because c10d has no stable ABI.
 */
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include "harp_coll.h"

namespace py = pybind11;

namespace
{

using at::Tensor;
using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;
using std::chrono::milliseconds;

/* ---- errors and the log ---------------------------------------------------------------------- */

[[noreturn]] void throw_error(int code, const std::string &text)
{
	const std::string message = "harp: " + (text.empty() ? strerror(-code) : text);

	if (code == -EINVAL)
		C10_THROW_ERROR(ValueError, message);
	C10_THROW_ERROR(DistBackendError, message);
}

std::exception_ptr error_object(int code, const std::string &text)
{
	try {
		throw_error(code, text);
	} catch (...) {
		return std::current_exception();
	}
}

template <typename... Parts> [[noreturn]] void refuse(const char *name, const Parts &...parts)
{
	C10_THROW_ERROR(ValueError, c10::str(name, ": ", parts...));
}

/* Prints the plugin's warnings; exceptions contain the library's. Runs with the library's lock
 * held, so it must not acquire a lock of Python or torch. */
void log_warning(void *, int level, const char *text)
{
	if (level == 2 && !strncmp(text, "NET/", 4))
		fprintf(stderr, "harp: %s\n", text);
}

/* ---- types ----------------------------------------------------------------------------------- */

std::optional<harp_coll_dtype> dtype_of(at::ScalarType type)
{
	static constexpr std::pair<at::ScalarType, harp_coll_dtype> types[] = {
		{ at::kChar, HARP_COLL_INT8 },
		{ at::kByte, HARP_COLL_UINT8 },
		{ at::kShort, HARP_COLL_INT16 },
		{ at::kUInt16, HARP_COLL_UINT16 },
		{ at::kInt, HARP_COLL_INT32 },
		{ at::kUInt32, HARP_COLL_UINT32 },
		{ at::kLong, HARP_COLL_INT64 },
		{ at::kUInt64, HARP_COLL_UINT64 },
		{ at::kHalf, HARP_COLL_FLOAT16 },
		{ at::kBFloat16, HARP_COLL_BFLOAT16 },
		{ at::kFloat, HARP_COLL_FLOAT32 },
		{ at::kDouble, HARP_COLL_FLOAT64 },
		{ at::kComplexFloat, HARP_COLL_COMPLEX64 },
		{ at::kComplexDouble, HARP_COLL_COMPLEX128 },
		{ at::kBool, HARP_COLL_BOOL },
	};

	for (const auto &[torch, own] : types)
		if (torch == type)
			return own;
	return std::nullopt;
}

harp_coll_reduce reduction_of(const char *name, const c10d::ReduceOp &op)
{
	static constexpr std::pair<c10d::ReduceOp::RedOpType, harp_coll_reduce> reductions[] = {
		{ c10d::ReduceOp::SUM, HARP_COLL_SUM },
		{ c10d::ReduceOp::AVG, HARP_COLL_AVG },
		{ c10d::ReduceOp::PRODUCT, HARP_COLL_PROD },
		{ c10d::ReduceOp::MIN, HARP_COLL_MIN },
		{ c10d::ReduceOp::MAX, HARP_COLL_MAX },
		{ c10d::ReduceOp::BAND, HARP_COLL_BAND },
		{ c10d::ReduceOp::BOR, HARP_COLL_BOR },
		{ c10d::ReduceOp::BXOR, HARP_COLL_BXOR },
	};

	for (const auto &[torch, own] : reductions)
		if (torch == op.op_)
			return own;
	refuse(name, "PREMUL_SUM is only for NCCL; multiply, then use SUM");
}

void check_dense(const char *name, const Tensor &tensor)
{
	if (!tensor.defined())
		refuse(name, "a tensor is undefined");
	if (tensor.layout() != at::kStrided)
		refuse(name,
		       "sparse tensors are not supported; use dense ones, or the gloo backend");
	if (!tensor.device().is_cpu())
		refuse(name, "a tensor is on ", tensor.device(),
		       ", but harp supports only CPU tensors; initialize with "
		       "\"cpu:harp,cuda:nccl\", or copy it to the CPU");
}

bool is_plain(const Tensor &tensor)
{
	return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

size_t count_of(const Tensor &tensor)
{
	return static_cast<size_t>(tensor.numel());
}

/* ---- an operation ---------------------------------------------------------------------------- */

struct Call {
	harp_coll_call call{};
	/* Memory of call's array members. */
	std::vector<size_t> in_counts, out_counts;
	std::vector<const void *> in_blocks;
	std::vector<void *> out_blocks;

	const harp_coll_call *fill()
	{
		if (!in_counts.empty())
			call.in_counts = in_counts.data();
		if (!out_counts.empty())
			call.out_counts = out_counts.data();
		if (!in_blocks.empty())
			call.in_blocks = in_blocks.data();
		if (!out_blocks.empty())
			call.out_blocks = out_blocks.data();
		return &call;
	}
};

struct Plan {
	OpType type;
	const char *name; /* for the profiler and errors; a literal */
	milliseconds timeout;
	std::vector<Call> calls;
	std::vector<Tensor> inputs, outputs;           /* the caller's */
	std::vector<Tensor> kept;                      /* owners of the calls' memory */
	std::vector<std::pair<Tensor, Tensor>> copies; /* output, its contiguous copy */

	Plan(OpType type_, const char *name_, milliseconds timeout_)
	    : type(type_), name(name_), timeout(timeout_)
	{
	}

	Call &add(harp_coll_op op, const Tensor &like, size_t count, const void *in = nullptr,
		  void *out = nullptr, int64_t peer = 0)
	{
		std::optional<harp_coll_dtype> dtype = dtype_of(like.scalar_type());
		Call &added = calls.emplace_back();
		harp_coll_call &call = added.call;

		call.size = sizeof(call);
		call.op = op;
		call.in = in;
		call.out = out;
		call.peer = static_cast<int>(peer);
		call.timeout_ms = timeout.count();
		if (op == HARP_COLL_BARRIER)
			return added;
		/* Tensors of types that the library does not have are sent as bytes. */
		call.dtype = dtype.value_or(HARP_COLL_UINT8);
		call.count = count * scale(like);
		return added;
	}

	void reduces(Call &added, const Tensor &like, const c10d::ReduceOp &op) const
	{
		if (!dtype_of(like.scalar_type()))
			refuse(name, "no reduction supports ", like.scalar_type(), " tensors");
		added.call.reduce = reduction_of(name, op);
	}

	/* Elements of the library's type in one element of the tensor. */
	static size_t scale(const Tensor &like)
	{
		return dtype_of(like.scalar_type()) ? 1 : like.element_size();
	}

	/* The library requires an address, which an empty tensor does not have. */
	static void *memory_of(const Tensor &tensor)
	{
		static char nothing;

		return tensor.numel() ? tensor.data_ptr() : &nothing;
	}

	const void *source(const Tensor &tensor)
	{
		check_dense(name, tensor);
		inputs.push_back(tensor);
		kept.push_back(is_plain(tensor) ? tensor
						: tensor.resolve_conj().resolve_neg().contiguous());
		return memory_of(kept.back());
	}

	void *target(const Tensor &tensor)
	{
		check_dense(name, tensor);
		outputs.push_back(tensor);
		if (is_plain(tensor)) {
			kept.push_back(tensor);
		} else {
			kept.push_back(at::empty(tensor.sizes(), tensor.options(),
						 at::MemoryFormat::Contiguous));
			copies.emplace_back(tensor, kept.back());
		}
		return memory_of(kept.back());
	}

	/* A tensor that is input and output. */
	void *in_place(const Tensor &tensor)
	{
		void *memory = target(tensor);

		inputs.push_back(tensor);
		if (!is_plain(tensor))
			kept.back().copy_(tensor);
		return memory;
	}

	void finish() const
	{
		at::AutoDispatchBelowAutograd guard;

		for (const auto &[tensor, copy] : copies)
			tensor.copy_(copy);
	}
};

/* ---- threads that complete Futures ----------------------------------------------------------- */

/* The object is never destroyed, because threads may outlive main(). */
class Completions
{
      public:
	static Completions &instance()
	{
		static auto *completions = new Completions;

		return *completions;
	}

	/* Calls the function in a thread of its own. */
	void run(std::function<void()> &&function)
	{
		{
			std::lock_guard<std::mutex> lock(lock_);

			running_++;
		}
		std::thread([this, function = std::move(function)]() mutable {
			function();
			function = nullptr; /* it holds the Work */
			std::lock_guard<std::mutex> lock(lock_);
			running_--;
			drained_.notify_all();
		}).detach();
	}

	/* Call before the interpreter ends, because callbacks may need it. */
	void drain()
	{
		std::unique_lock<std::mutex> lock(lock_);

		drained_.wait_for(lock, std::chrono::seconds(2), [this] { return !running_; });
	}

      private:
	std::mutex lock_;
	std::condition_variable drained_;
	size_t running_ = 0;
};

/* ---- Work ------------------------------------------------------------------------------------ */

/* True: this thread is in a callback of the library, so it must not close groups. */
thread_local bool is_in_callback;

class HarpWork : public Work
{
      public:
	HarpWork(int rank, Plan &&plan, uint64_t sequence)
	    : Work(rank, plan.type, plan.name, plan.inputs), plan_(std::move(plan)),
	      left_(plan_.calls.size()), sequence_(sequence)
	{
	}

	~HarpWork() override
	{
		for (harp_coll_request *request : requests_)
			harp_coll_request_free(request);
	}

	/* Throws the error of the first call. An error of a later call completes the Work with
	 * it. */
	static void start(const intrusive_ptr<HarpWork> &work, harp_coll *group)
	{
		char error[HARP_COLL_ERROR_BYTES];
		const size_t count = work->plan_.calls.size();

		if (count == 0)
			work->complete();
		work->requests_.reserve(count);
		for (size_t i = 0; i < count; i++) {
			harp_coll_request *request;
			const int rc = harp_coll_start(group, work->plan_.calls[i].fill(), &request,
						       error, sizeof(error));

			if (rc && i == 0) {
				work->left_ = 0;
				work->finish(error_object(rc, error));
				throw_error(rc, error);
			}
			if (rc) {
				for (; i < count; i++)
					work->one_done(rc, error);
				return;
			}
			work->requests_.push_back(request);
			harp_coll_notify(request, on_done, new Done{ work, request });
		}
	}

	bool wait(milliseconds timeout) override
	{
		for (harp_coll_request *request : requests_) {
			const int rc = harp_coll_wait(request,
						      timeout == kNoTimeout ? -1 : timeout.count());

			if (rc == -EAGAIN)
				throw_error(-ETIMEDOUT,
					    c10::str(plan_.name, " is still in progress after ",
						     timeout.count(), " ms"));
			if (rc == -EOWNERDEAD)
				throw_error(rc, "this process was forked while a process group was "
						"open; start workers with spawn");
		}
		{
			/* Another thread may still be copying results. */
			std::unique_lock<std::mutex> lock(mutex_);
			cv_.wait(lock, [this] { return completed_; });
		}
		if (exception_)
			std::rethrow_exception(exception_);
		return true;
	}

	intrusive_ptr<c10::ivalue::Future> getFuture() override
	{
		bool is_done;
		{
			std::lock_guard<std::mutex> lock(mutex_);

			if (future_)
				return future_;
			future_ = c10::make_intrusive<c10::ivalue::Future>(
				c10::ListType::create(c10::TensorType::get()));
			is_done = completed_;
		}
		if (is_done)
			complete_future();
		return future_;
	}

	std::vector<Tensor> result() override
	{
		return plan_.outputs;
	}

	int sourceRank() const override
	{
		return requests_.empty() ? -1 : harp_coll_request_source(requests_[0]);
	}

	uint64_t getSequencenumber() const override
	{
		return sequence_;
	}

      private:
	struct Done {
		intrusive_ptr<HarpWork> work;
		harp_coll_request *request;
	};

	static void on_done(void *arg)
	{
		const bool was_in_callback = std::exchange(is_in_callback, true);
		{
			std::unique_ptr<Done> done(static_cast<Done *>(arg));

			done->work->one_done(harp_coll_test(done->request),
					     harp_coll_request_error(done->request));
		}
		is_in_callback = was_in_callback;
	}

	void one_done(int rc, const char *text)
	{
		{
			std::lock_guard<std::mutex> lock(mutex_);

			if (rc && !failure_)
				failure_ = error_object(rc, text);
			if (--left_)
				return;
		}
		complete();
	}

	void complete()
	{
		if (!failure_) {
			try {
				plan_.finish();
			} catch (...) {
				failure_ = std::current_exception();
			}
		}
		/* Releases the tensors, because the caller may keep the Work for long. */
		plan_.kept.clear();
		plan_.copies.clear();
		finish(failure_);
		bool has_future;
		{
			std::lock_guard<std::mutex> lock(mutex_);

			has_future = static_cast<bool>(future_);
		}
		if (has_future)
			Completions::instance().run([work = intrusive_ptr<HarpWork>::reclaim_copy(
							     this)] { work->complete_future(); });
	}

	/* Both complete() and getFuture() may call it. */
	void complete_future()
	{
		if (is_future_complete_.exchange(true))
			return;
		if (failure_)
			future_->setError(failure_);
		else
			future_->markCompleted(c10::IValue(plan_.outputs));
	}

	Plan plan_;
	std::vector<harp_coll_request *> requests_;
	size_t left_; /* calls that are not done */
	std::exception_ptr failure_;
	const uint64_t sequence_;
	intrusive_ptr<c10::ivalue::Future> future_; /* null until getFuture() */
	std::atomic<bool> is_future_complete_ = false;
};

/* ---- the store ------------------------------------------------------------------------------- */

class StoreKeys
{
      public:
	StoreKeys(const intrusive_ptr<c10d::Store> &store, milliseconds limit) : limit_(limit)
	{
		try {
			store_ = store->clone();
		} catch (const std::exception &) {
			store_ = store; /* stores in Python may lack clone() */
		}
	}

	harp_coll_store table()
	{
		harp_coll_store table{};

		table.size = sizeof(table);
		table.arg = this;
		table.set = set;
		table.get = get;
		table.wait = wait;
		return table;
	}

	/* Counts the groups that this rank opens with the store's prefix, for unique names. */
	int64_t generation(int rank)
	{
		const Reply reply = ask([rank](c10d::Store &store, Reply &answer) {
			answer.number = store.add(c10::str("harp/generation/", rank), 1);
		});

		if (reply.rc)
			throw_error(reply.rc, c10::str("the key-value store does not answer: ",
						       take_error()));
		return reply.number;
	}

	/* Limits the time of requests: an open group uses the store only for failures. */
	void set_open()
	{
		limit_ = std::min(limit_, answer_limit);
	}

	std::string take_error()
	{
		return std::exchange(error_, std::string());
	}

      private:
	struct Reply {
		int rc = 0;
		std::vector<uint8_t> value;
		std::string error;
		int64_t number = 0;
	};
	using Question = std::function<void(c10d::Store &, Reply &)>;

	/* The question may outlive this object, so it must own its data. */
	Reply ask(Question question, milliseconds more = milliseconds(0))
	{
		Reply reply{
			-EIO, {}, c10::str("no answer within ", (limit_ + more).count(), " ms"), 0
		};

		if (is_asked_->exchange(true))
			reply.error = "an earlier request has no answer yet";
		else
			ask_thread(std::move(question), more, reply);
		if (reply.rc == -EIO)
			error_ = reply.error;
		return reply;
	}

	void ask_thread(Question &&question, milliseconds more, Reply &reply)
	{
		std::packaged_task<Reply()> task(
			[store = store_, is_asked = is_asked_, question = std::move(question)] {
				Reply answer;

				try {
					question(*store, answer);
				} catch (const c10::Error &error) {
					answer = { -EIO, {}, error.what_without_backtrace(), 0 };
				} catch (const std::exception &error) {
					answer = { -EIO, {}, error.what(), 0 };
				}
				*is_asked = false;
				return answer;
			});
		std::future<Reply> answer = task.get_future();

		try {
			std::thread(std::move(task)).detach();
		} catch (const std::system_error &error) {
			*is_asked_ = false;
			reply.error = c10::str("no thread for the request: ", error.what());
			return;
		}
		if (answer.wait_for(limit_ + more) == std::future_status::ready)
			reply = answer.get();
	}

	static int set(void *arg, const char *key, const void *value, size_t bytes)
	{
		const auto *data = static_cast<const uint8_t *>(value);

		return static_cast<StoreKeys *>(arg)
			->ask([key = std::string(key),
			       copy = std::vector<uint8_t>(data, data + bytes)](c10d::Store &store,
										Reply &) {
				store.set(key, copy);
			})
			.rc;
	}

	static int get(void *arg, const char *key, void *value, size_t *bytes)
	{
		const Reply reply = static_cast<StoreKeys *>(arg)->ask(
			[key = std::string(key)](c10d::Store &store, Reply &answer) {
				if (store.check({ key }))
					answer.value = store.get(key);
				else
					answer.rc = -ENOENT;
			});
		const size_t room = *bytes;

		if (reply.rc)
			return reply.rc;
		*bytes = reply.value.size();
		if (reply.value.size() > room)
			return -ENOSPC;
		memcpy(value, reply.value.data(), reply.value.size());
		return 0;
	}

	static int wait(void *arg, const char *key, int64_t timeout_ms)
	{
		return static_cast<StoreKeys *>(arg)
			->ask(
				[key = std::string(key), timeout_ms](c10d::Store &store,
								     Reply &answer) {
					try {
						store.wait({ key }, milliseconds(timeout_ms));
					} catch (const c10::DistNetworkError &) {
						throw;
					} catch (const c10::DistError &) {
						answer.rc = -ETIMEDOUT;
					}
				},
				milliseconds(timeout_ms))
			.rc;
	}

	static constexpr milliseconds answer_limit{ 10000 };
	intrusive_ptr<c10d::Store> store_;
	milliseconds limit_; /* for an answer */
	std::shared_ptr<std::atomic<bool>> is_asked_ = std::make_shared<std::atomic<bool>>(false);
	std::string error_;
};

/* ---- the backend ----------------------------------------------------------------------------- */

class HarpBackend;
void close_all();

/* The open backends, for close_all(). */
std::mutex open_lock;
std::set<HarpBackend *> open_backends;

class HarpBackend : public c10d::Backend
{
      public:
	HarpBackend(const intrusive_ptr<c10d::Store> &store, int rank, int size,
		    milliseconds timeout, const std::string &name, std::string plugin,
		    harp_coll_wire wire)
	    : Backend(rank, size), keys_(std::make_unique<StoreKeys>(store, timeout)),
	      timeout_(timeout), plugin_(std::move(plugin)), wire_(wire)
	{
		harp_coll_options options{};
		char error[HARP_COLL_ERROR_BYTES];
		/* The store's prefix differs between groups; the name appears in errors. */
		const std::string unique =
			c10::str(name.substr(0, 32), ".", keys_->generation(rank));

		options.size = sizeof(options);
		options.rank = rank;
		options.world = size;
		options.name = unique.c_str();
		options.store = keys_->table();
		options.plugin = plugin_.empty() ? nullptr : plugin_.c_str();
		options.device = -1;
		options.timeout_ms = timeout.count();
		options.wire = wire_;
		options.log = log_warning;
		const int rc = harp_coll_open(&options, &group_, error, sizeof(error));
		if (rc) {
			const std::string cause = keys_->take_error();

			throw_error(rc, cause.empty() ? error : c10::str(error, " (", cause, ")"));
		}
		keys_->set_open();
		std::lock_guard<std::mutex> lock(open_lock);
		open_backends.insert(this);
	}

	~HarpBackend() override
	{
		close();
	}

	const std::string getBackendName() const override
	{
		return "harp";
	}

	bool supportsSplitting() const override
	{
		return true;
	}

	intrusive_ptr<Options> getBackendOptions() override
	{
		return c10::make_intrusive<Options>("harp", timeout_);
	}

	void setTimeout(milliseconds timeout) override
	{
		timeout_ = timeout;
	}

	void setSequenceNumberForGroup() override
	{
	}

	uint64_t getSequenceNumberForGroup() override
	{
		return sequence_;
	}

	c10d::ErrorType getError() override
	{
		return group_ && *harp_coll_error(group_) ? c10d::ErrorType::COMM_ERROR
							  : c10d::ErrorType::SUCCESS;
	}

	intrusive_ptr<Backend> split(const intrusive_ptr<c10d::Store> &store,
				     const std::vector<int> &ranks,
				     const intrusive_ptr<Options> &opts) override
	{
		const auto at = std::find(ranks.begin(), ranks.end(), rank_);

		if (at == ranks.end())
			return nullptr;
		return c10::make_intrusive<HarpBackend>(store, static_cast<int>(at - ranks.begin()),
							static_cast<int>(ranks.size()),
							opts ? opts->timeout : timeout_, "split",
							plugin_, wire_);
	}

	/* ---- reductions ---- */

	intrusive_ptr<Work> allreduce(std::vector<Tensor> &tensors,
				      const c10d::AllreduceOptions &opts) override
	{
		return allreduce_each(OpType::ALLREDUCE, "harp:all_reduce",
				      one("harp:all_reduce", tensors), opts);
	}

	intrusive_ptr<Work> allreduce_coalesced(
		std::vector<Tensor> &tensors, const c10d::AllreduceCoalescedOptions &opts) override
	{
		at::AutoDispatchBelowAutograd guard;

		if (tensors.empty())
			refuse("harp:all_reduce_coalesced", "no tensors: pass at least one");
		for (const Tensor &tensor : tensors) {
			check_dense("harp:all_reduce_coalesced", tensor);
			same_type("harp:all_reduce_coalesced", tensor, tensors[0]);
		}
		if (tensors.size() == 1)
			return allreduce_each(OpType::ALLREDUCE_COALESCED,
					      "harp:all_reduce_coalesced", tensors, opts);
		/* One operation on a joined tensor costs less than many small ones. */
		std::vector<Tensor> flat;
		for (const Tensor &tensor : tensors)
			flat.push_back(
				tensor.resolve_conj().resolve_neg().contiguous().view({ -1 }));
		const Tensor joined = at::cat(flat);
		Plan plan =
			make_plan(OpType::ALLREDUCE_COALESCED, "harp:all_reduce_coalesced", opts);
		void *memory = Plan::memory_of(joined);
		Call &call =
			plan.add(HARP_COLL_ALLREDUCE, joined, count_of(joined), memory, memory);
		int64_t offset = 0;

		plan.reduces(call, joined, opts.reduceOp);
		plan.kept.push_back(joined);
		plan.inputs = plan.outputs = tensors;
		for (const Tensor &tensor : tensors) {
			plan.copies.emplace_back(tensor, joined.narrow(0, offset, tensor.numel())
								 .view(tensor.sizes()));
			offset += tensor.numel();
		}
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> allreduce_sparse(std::vector<Tensor> &tensors,
					     const c10d::AllreduceOptions &opts) override
	{
		return allreduce(tensors, opts); /* throws for sparse tensors */
	}

	intrusive_ptr<Work> reduce(std::vector<Tensor> &tensors,
				   const c10d::ReduceOptions &opts) override
	{
		at::AutoDispatchBelowAutograd guard;
		const Tensor &tensor = one("harp:reduce", tensors)[0];
		Plan plan = make_plan(OpType::REDUCE, "harp:reduce", opts);
		const void *in;
		void *out = nullptr;

		if (opts.rootRank == rank_) {
			in = out = plan.in_place(tensor);
		} else {
			in = plan.source(tensor);
			plan.outputs = tensors;
		}
		Call &call = plan.add(HARP_COLL_REDUCE, tensor, count_of(tensor), in, out,
				      opts.rootRank);
		plan.reduces(call, tensor, opts.reduceOp);
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> reduce_scatter(std::vector<Tensor> &outputs,
					   std::vector<std::vector<Tensor>> &inputs,
					   const c10d::ReduceScatterOptions &opts) override
	{
		static const char name[] = "harp:reduce_scatter";
		at::AutoDispatchBelowAutograd guard;
		const Tensor &output = one(name, outputs)[0];
		const std::vector<Tensor> &blocks = blocks_of(name, inputs, output);
		Plan plan = make_plan(OpType::REDUCE_SCATTER, name, opts);
		Call &call = plan.add(HARP_COLL_REDUCE_SCATTER, output, count_of(output), nullptr,
				      plan.target(output));

		plan.reduces(call, output, opts.reduceOp);
		add_sources(plan, call, blocks);
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> _reduce_scatter_base(Tensor &output, Tensor &input,
						 const c10d::ReduceScatterOptions &opts) override
	{
		std::vector<Tensor> outputs{ output }, inputs{ input };

		return reduce_scatter_each(OpType::_REDUCE_SCATTER_BASE,
					   "harp:reduce_scatter_tensor", outputs, inputs, opts);
	}

	intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
		std::vector<Tensor> &outputs, std::vector<Tensor> &inputs,
		const c10d::ReduceScatterOptions &opts) override
	{
		return reduce_scatter_each(OpType::REDUCE_SCATTER_TENSOR_COALESCED,
					   "harp:reduce_scatter_tensor_coalesced", outputs, inputs,
					   opts);
	}

	/* ---- data movement ---- */

	intrusive_ptr<Work> broadcast(std::vector<Tensor> &tensors,
				      const c10d::BroadcastOptions &opts) override
	{
		at::AutoDispatchBelowAutograd guard;
		const Tensor &tensor = one("harp:broadcast", tensors)[0];
		Plan plan = make_plan(OpType::BROADCAST, "harp:broadcast", opts);
		void *memory = opts.rootRank == rank_ ? plan.in_place(tensor) : plan.target(tensor);

		plan.add(HARP_COLL_BROADCAST, tensor, count_of(tensor), nullptr, memory,
			 opts.rootRank);
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> allgather(std::vector<std::vector<Tensor>> &outputs,
				      std::vector<Tensor> &inputs,
				      const c10d::AllgatherOptions &opts) override
	{
		static const char name[] = "harp:all_gather";
		at::AutoDispatchBelowAutograd guard;
		const Tensor &input = one(name, inputs)[0];
		Plan plan = make_plan(OpType::ALLGATHER, name, opts);

		add_allgather(plan, input, blocks_of(name, outputs, input));
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> allgather_coalesced(std::vector<std::vector<Tensor>> &outputs,
						std::vector<Tensor> &inputs,
						const c10d::AllgatherOptions &opts) override
	{
		static const char name[] = "harp:all_gather_coalesced";
		at::AutoDispatchBelowAutograd guard;
		Plan plan = make_plan(OpType::ALLGATHER_COALESCED, name, opts);

		if (outputs.size() != static_cast<size_t>(size_))
			refuse(name, outputs.size(), " lists of outputs for ", size_, " ranks");
		for (const std::vector<Tensor> &list : outputs)
			if (list.size() != inputs.size())
				refuse(name, "a list of outputs has ", list.size(),
				       " tensors, but there are ", inputs.size(), " inputs");
		for (size_t i = 0; i < inputs.size(); i++) {
			std::vector<Tensor> blocks;

			for (const std::vector<Tensor> &list : outputs)
				blocks.push_back(list[i]);
			check_blocks(name, blocks, inputs[i]);
			check_own(name, blocks, inputs[i]);
			add_allgather(plan, inputs[i], blocks);
		}
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> _allgather_base(Tensor &output, Tensor &input,
					    const c10d::AllgatherOptions &opts) override
	{
		std::vector<Tensor> outputs{ output }, inputs{ input };

		return allgather_each(OpType::_ALLGATHER_BASE, "harp:all_gather_into_tensor",
				      outputs, inputs, opts);
	}

	intrusive_ptr<Work> allgather_into_tensor_coalesced(
		std::vector<Tensor> &outputs, std::vector<Tensor> &inputs,
		const c10d::AllgatherOptions &opts) override
	{
		return allgather_each(OpType::COALESCED, "harp:all_gather_into_tensor_coalesced",
				      outputs, inputs, opts);
	}

	intrusive_ptr<Work> gather(std::vector<std::vector<Tensor>> &outputs,
				   std::vector<Tensor> &inputs,
				   const c10d::GatherOptions &opts) override
	{
		static const char name[] = "harp:gather";
		at::AutoDispatchBelowAutograd guard;
		const Tensor &input = one(name, inputs)[0];
		Plan plan = make_plan(OpType::GATHER, name, opts);
		Call &call = plan.add(HARP_COLL_GATHER, input, count_of(input), plan.source(input),
				      nullptr, opts.rootRank);

		if (opts.rootRank == rank_)
			add_targets(plan, call, blocks_of(name, outputs, input));
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> scatter(std::vector<Tensor> &outputs,
				    std::vector<std::vector<Tensor>> &inputs,
				    const c10d::ScatterOptions &opts) override
	{
		static const char name[] = "harp:scatter";
		at::AutoDispatchBelowAutograd guard;
		const Tensor &output = one(name, outputs)[0];
		Plan plan = make_plan(OpType::SCATTER, name, opts);
		Call &call = plan.add(HARP_COLL_SCATTER, output, count_of(output), nullptr,
				      plan.target(output), opts.rootRank);

		if (opts.rootRank == rank_)
			add_sources(plan, call, blocks_of(name, inputs, output));
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> alltoall(std::vector<Tensor> &outputs, std::vector<Tensor> &inputs,
				     const c10d::AllToAllOptions &opts) override
	{
		static const char name[] = "harp:all_to_all";
		at::AutoDispatchBelowAutograd guard;
		Plan plan = make_plan(OpType::ALLTOALL, name, opts);

		check_blocks(name, inputs, inputs.empty() ? Tensor() : inputs[0]);
		check_blocks(name, outputs, inputs[0]);
		Call &call = plan.add(HARP_COLL_ALLTOALL, inputs[0], 0);
		add_sources(plan, call, inputs);
		add_targets(plan, call, outputs);
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> alltoall_base(Tensor &output, Tensor &input,
					  std::vector<int64_t> &output_splits,
					  std::vector<int64_t> &input_splits,
					  const c10d::AllToAllOptions &opts) override
	{
		static const char name[] = "harp:all_to_all_single";
		at::AutoDispatchBelowAutograd guard;
		Plan plan = make_plan(OpType::ALLTOALL_BASE, name, opts);
		const void *in = plan.source(input);
		void *out = plan.target(output);

		same_type(name, output, input);
		c10d::checkSplitSizes(input_splits, input, size_);
		c10d::checkSplitSizes(output_splits, output, size_);
		Call &call = plan.add(HARP_COLL_ALLTOALL, input, 0, in, out);
		set_split_counts(call.in_counts, input, input_splits);
		set_split_counts(call.out_counts, output, output_splits);
		return run(std::move(plan), opts.asyncOp);
	}

	/* ---- messages ---- */

	intrusive_ptr<Work> send(std::vector<Tensor> &tensors, int peer, int tag) override
	{
		at::AutoDispatchBelowAutograd guard;
		const Tensor &tensor = one("harp:send", tensors)[0];
		Plan plan(OpType::SEND, "harp:send", timeout_);
		Call &call = plan.add(HARP_COLL_SEND, tensor, count_of(tensor), plan.source(tensor),
				      nullptr, peer);

		call.call.tag = tag;
		plan.outputs = tensors;
		return run(std::move(plan), true);
	}

	intrusive_ptr<Work> recv(std::vector<Tensor> &tensors, int peer, int tag) override
	{
		return receive(OpType::RECV, "harp:recv", tensors, peer, tag);
	}

	intrusive_ptr<Work> recvAnysource(std::vector<Tensor> &tensors, int tag) override
	{
		return receive(OpType::RECVANYSOURCE, "harp:recv", tensors, HARP_COLL_ANY_RANK,
			       tag);
	}

	/* ---- synchronization ---- */

	intrusive_ptr<Work> barrier(const c10d::BarrierOptions &opts) override
	{
		Plan plan = make_plan(OpType::BARRIER, "harp:barrier", opts);

		plan.add(HARP_COLL_BARRIER, Tensor(), 0);
		return run(std::move(plan), opts.asyncOp);
	}

	/* The timeout error of the library's barrier names all missing ranks. */
	void monitoredBarrier(const c10d::BarrierOptions &opts, bool) override
	{
		Plan plan = make_plan(OpType::BARRIER, "harp:monitored_barrier", opts);

		plan.add(HARP_COLL_BARRIER, Tensor(), 0);
		run(std::move(plan), false);
	}

	void startCoalescing() override
	{
		if (coalesced_)
			refuse("harp:coalescing", "startCoalescing() was already called");
		coalesced_.emplace(OpType::COALESCED, "harp:coalesced", timeout_);
	}

	intrusive_ptr<Work> endCoalescing() override
	{
		if (!coalesced_)
			refuse("harp:coalescing", "startCoalescing() was not called");
		Plan plan = std::move(*coalesced_);

		coalesced_.reset();
		return run(std::move(plan), true);
	}

	/* ---- the end ---- */

	void abort() override
	{
		std::lock_guard<std::mutex> lock(close_lock_);

		harp_coll_abort(group_, "torch.distributed aborted the process group");
	}

	void shutdown() override
	{
		close();
	}

	harp_coll *group() const
	{
		if (!group_)
			throw_error(-EINVAL, "the process group is destroyed");
		return group_;
	}

      private:
	template <typename Opts> Plan make_plan(OpType type, const char *name, const Opts &opts)
	{
		/* Never passes 0: for the library that is the group's first timeout, before
		 * setTimeout(). */
		return Plan(type, name, opts.timeout.count() > 0 ? opts.timeout : timeout_);
	}

	static std::vector<Tensor> &one(const char *name, std::vector<Tensor> &tensors)
	{
		if (tensors.size() != 1)
			refuse(name, tensors.size(), " tensors: pass one");
		check_dense(name, tensors[0]);
		return tensors;
	}

	static void same_type(const char *name, const Tensor &tensor, const Tensor &like)
	{
		check_dense(name, tensor);
		check_dense(name, like);
		if (tensor.scalar_type() != like.scalar_type())
			refuse(name, "the tensors have different types: ", like.scalar_type(),
			       " and ", tensor.scalar_type());
	}

	void check_blocks(const char *name, const std::vector<Tensor> &blocks,
			  const Tensor &like) const
	{
		if (blocks.size() != static_cast<size_t>(size_))
			refuse(name, blocks.size(), " tensors for ", size_, " ranks");
		for (const Tensor &block : blocks)
			same_type(name, block, like);
	}

	/* A rank's own tensor in its list must have the size of the tensor that it sends or
	 * receives. */
	void check_own(const char *name, const std::vector<Tensor> &blocks, const Tensor &own) const
	{
		const Tensor &block = blocks[static_cast<size_t>(rank_)];

		if (block.numel() != own.numel())
			refuse(name, "tensor ", rank_, " of the list has ", block.numel(),
			       " elements, but the other tensor of rank ", rank_, " has ",
			       own.numel());
	}

	/* Returns the only list, which must have a tensor for each rank. */
	const std::vector<Tensor> &blocks_of(const char *name,
					     const std::vector<std::vector<Tensor>> &lists,
					     const Tensor &like) const
	{
		if (lists.size() != 1)
			refuse(name, lists.size(), " lists of tensors: pass one");
		check_blocks(name, lists[0], like);
		check_own(name, lists[0], like);
		return lists[0];
	}

	static void set_counts(std::vector<size_t> &counts, const std::vector<Tensor> &blocks)
	{
		for (const Tensor &block : blocks)
			counts.push_back(count_of(block) * Plan::scale(block));
	}

	void set_split_counts(std::vector<size_t> &counts, const Tensor &tensor,
			      const std::vector<int64_t> &splits) const
	{
		const size_t world = static_cast<size_t>(size_), scale = Plan::scale(tensor);
		const size_t rows = tensor.dim() ? static_cast<size_t>(tensor.size(0)) : 0;
		const size_t row = rows ? count_of(tensor) / rows : 0;

		for (size_t r = 0; r < world; r++)
			counts.push_back((splits.empty() ? count_of(tensor) / world
							 : static_cast<size_t>(splits[r]) * row) *
					 scale);
	}

	/* Blocks of equal size need no counts, except in an alltoall. */
	static bool need_counts(const Call &call, const std::vector<Tensor> &blocks)
	{
		return call.call.op == HARP_COLL_ALLTOALL ||
		       std::any_of(blocks.begin(), blocks.end(), [&](const Tensor &block) {
			       return block.numel() != blocks[0].numel();
		       });
	}

	static void add_sources(Plan &plan, Call &call, const std::vector<Tensor> &blocks)
	{
		for (const Tensor &block : blocks)
			call.in_blocks.push_back(plan.source(block));
		if (need_counts(call, blocks))
			set_counts(call.in_counts, blocks);
	}

	static void add_targets(Plan &plan, Call &call, const std::vector<Tensor> &blocks)
	{
		for (const Tensor &block : blocks)
			call.out_blocks.push_back(plan.target(block));
		if (need_counts(call, blocks))
			set_counts(call.out_counts, blocks);
	}

	void add_allgather(Plan &plan, const Tensor &input, const std::vector<Tensor> &blocks)
	{
		Call &call =
			plan.add(HARP_COLL_ALLGATHER, input, count_of(input), plan.source(input));

		add_targets(plan, call, blocks);
	}

	intrusive_ptr<Work> allreduce_each(OpType type, const char *name,
					   const std::vector<Tensor> &tensors,
					   const c10d::AllreduceOptions &opts)
	{
		at::AutoDispatchBelowAutograd guard;
		Plan plan = make_plan(type, name, opts);

		for (const Tensor &tensor : tensors) {
			void *memory = plan.in_place(tensor);
			Call &call = plan.add(HARP_COLL_ALLREDUCE, tensor, count_of(tensor), memory,
					      memory);

			plan.reduces(call, tensor, opts.reduceOp);
		}
		return run(std::move(plan), opts.asyncOp);
	}

	/* Each wide tensor must have `world` times the elements of its narrow one. */
	void check_pairs(const char *name, const std::vector<Tensor> &wide,
			 const std::vector<Tensor> &narrow) const
	{
		if (wide.size() != narrow.size())
			refuse(name, "the numbers of outputs and inputs differ");
		for (size_t i = 0; i < wide.size(); i++) {
			same_type(name, wide[i], narrow[i]);
			if (wide[i].numel() != narrow[i].numel() * size_)
				refuse(name, "the larger tensor has ", wide[i].numel(),
				       " elements, but needs ", size_, " times ",
				       narrow[i].numel());
		}
	}

	intrusive_ptr<Work> allgather_each(OpType type, const char *name,
					   std::vector<Tensor> &outputs,
					   std::vector<Tensor> &inputs,
					   const c10d::AllgatherOptions &opts)
	{
		at::AutoDispatchBelowAutograd guard;
		Plan plan = make_plan(type, name, opts);

		check_pairs(name, outputs, inputs);
		for (size_t i = 0; i < inputs.size(); i++) {
			const void *in = plan.source(inputs[i]);

			plan.add(HARP_COLL_ALLGATHER, inputs[i], count_of(inputs[i]), in,
				 plan.target(outputs[i]));
		}
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> reduce_scatter_each(OpType type, const char *name,
						std::vector<Tensor> &outputs,
						std::vector<Tensor> &inputs,
						const c10d::ReduceScatterOptions &opts)
	{
		at::AutoDispatchBelowAutograd guard;
		Plan plan = make_plan(type, name, opts);

		check_pairs(name, inputs, outputs);
		for (size_t i = 0; i < outputs.size(); i++) {
			const void *in = plan.source(inputs[i]);
			Call &call = plan.add(HARP_COLL_REDUCE_SCATTER, outputs[i],
					      count_of(outputs[i]), in, plan.target(outputs[i]));

			plan.reduces(call, outputs[i], opts.reduceOp);
		}
		return run(std::move(plan), opts.asyncOp);
	}

	intrusive_ptr<Work> receive(OpType type, const char *name, std::vector<Tensor> &tensors,
				    int peer, int tag)
	{
		at::AutoDispatchBelowAutograd guard;
		const Tensor &tensor = one(name, tensors)[0];
		Plan plan(type, name, timeout_);
		Call &call = plan.add(HARP_COLL_RECV, tensor, count_of(tensor), nullptr,
				      plan.target(tensor), peer);

		call.call.tag = tag;
		return run(std::move(plan), true);
	}

	intrusive_ptr<Work> run(Plan &&plan, bool is_async)
	{
		if (coalesced_) {
			coalesce(std::move(plan));
			return nullptr;
		}
		sequence_ += plan.calls.size();
		if (is_async) {
			auto work =
				c10::make_intrusive<HarpWork>(rank_, std::move(plan), sequence_);

			HarpWork::start(work, group());
			return work;
		}
		char error[HARP_COLL_ERROR_BYTES];
		for (Call &call : plan.calls) {
			const int rc = harp_coll_run(group(), call.fill(), error, sizeof(error));

			if (rc)
				throw_error(rc, error);
		}
		plan.finish();
		return nullptr;
	}

	void coalesce(Plan &&plan)
	{
		auto move = [](auto &from, auto &to) {
			std::move(from.begin(), from.end(), std::back_inserter(to));
		};

		move(plan.calls, coalesced_->calls);
		move(plan.inputs, coalesced_->inputs);
		move(plan.outputs, coalesced_->outputs);
		move(plan.kept, coalesced_->kept);
		move(plan.copies, coalesced_->copies);
	}

	/* Releases the GIL, which callbacks and stores in Python need. */
	void close()
	{
		std::optional<py::gil_scoped_release> release;

		if (Py_IsInitialized() && PyGILState_Check())
			release.emplace();
		std::lock_guard<std::mutex> lock(open_lock);
		open_backends.erase(this);
		close_group();
	}

	void close_group()
	{
		harp_coll *group;
		{
			std::lock_guard<std::mutex> lock(close_lock_);

			group = std::exchange(group_, nullptr);
		}
		if (!group)
			return;
		/* Closing may join the library's thread, which runs callbacks. */
		if (is_in_callback)
			std::thread([group, keys = std::shared_ptr<StoreKeys>(std::move(keys_))] {
				harp_coll_close(group);
			}).detach();
		else
			harp_coll_close(group);
	}

	friend void close_all();
	std::unique_ptr<StoreKeys> keys_;
	milliseconds timeout_;
	const std::string plugin_;
	const harp_coll_wire wire_;
	std::mutex close_lock_;
	harp_coll *group_ = nullptr;
	uint64_t sequence_ = 0;
	std::optional<Plan> coalesced_;
};

/* ---- the largest gradients ------------------------------------------------------------------- */

/* NaN counts as infinity, so that it is exchanged. */
template <typename T> float magnitude_of(T value)
{
	const float magnitude = std::abs(static_cast<float>(value));

	return std::isnan(magnitude) ? std::numeric_limits<float>::infinity() : magnitude;
}

/* Returns the count-th largest; reorders the magnitudes. */
float nth_largest(std::vector<float> &magnitudes, size_t count)
{
	const auto nth = magnitudes.begin() + static_cast<std::ptrdiff_t>(count - 1);

	std::nth_element(magnitudes.begin(), nth, magnitudes.end(), std::greater<>());
	return *nth;
}

constexpr size_t block = 16; /* elements; constant, so that the compiler vectorizes loops */

/* Adds addend, unless it is null. True: a magnitude is at least threshold. */
template <typename T>
bool block_reaches(T *__restrict__ values, const T *__restrict__ addend, size_t count,
		   float threshold)
{
	size_t below = 0;

	if (addend)
		for (size_t i = 0; i < count; i++)
			values[i] += addend[i];
	for (size_t i = 0; i < count; i++)
		below += std::abs(static_cast<float>(values[i])) < threshold;
	return below < count;
}

/* Adds addend, unless it is null. Returns the indices of magnitudes of at least threshold. */
template <typename T>
std::vector<int32_t> candidates_of(T *values, const T *addend, size_t size, float threshold)
{
	std::vector<int32_t> indices;

	for (size_t start = 0; start < size; start += block) {
		const T *added = addend ? addend + start : nullptr;
		const size_t end = std::min(start + block, size);

		if (end - start == block
			    ? block_reaches(values + start, added, block, threshold)
			    : block_reaches(values + start, added, end - start, threshold))
			for (size_t i = start; i < end; i++)
				if (magnitude_of(values[i]) >= threshold)
					indices.push_back(static_cast<int32_t>(i));
	}
	return indices;
}

/*
 * Estimates the threshold from a sample, which leaves few candidates. If there are fewer than
 * count, the estimate was too high, and all elements become candidates.
 */
template <typename T>
std::vector<int32_t> largest_of(T *values, const T *addend, size_t size, size_t count)
{
	const size_t stride = size >> 14;
	float threshold = 0;
	std::vector<float> magnitudes;

	if (stride > 1) {
		for (size_t i = 0; i < size; i += stride)
			magnitudes.push_back(magnitude_of(
				addend ? static_cast<T>(values[i] + addend[i]) : values[i]));
		threshold = nth_largest(magnitudes,
					std::min(magnitudes.size(), count / stride * 6 / 5 + 16));
	}
	std::vector<int32_t> candidates = candidates_of(values, addend, size, threshold);
	if (candidates.size() < count)
		candidates = candidates_of<T>(values, nullptr, size, 0);
	magnitudes.clear();
	for (const int32_t i : candidates)
		magnitudes.push_back(magnitude_of(values[i]));
	threshold = nth_largest(magnitudes, count);
	size_t equal =
		count - static_cast<size_t>(std::count_if(magnitudes.begin(), magnitudes.end(),
							  [&](float magnitude) {
								  return magnitude > threshold;
							  }));
	std::vector<int32_t> largest_indices;

	for (const int32_t i : candidates) {
		const float magnitude = magnitude_of(values[i]);

		if (magnitude < threshold || (magnitude == threshold && equal == 0))
			continue;
		equal -= magnitude == threshold;
		largest_indices.push_back(i);
	}
	return largest_indices;
}

/* hooks.largest() */
Tensor largest(const Tensor &gradients, int64_t count, const std::optional<Tensor> &residual)
{
	static const char name[] = "largest";
	const Tensor &values = residual ? *residual : gradients;
	std::vector<int32_t> indices;

	for (const Tensor &tensor : { gradients, values }) {
		check_dense(name, tensor);
		if (!is_plain(tensor) || tensor.numel() != gradients.numel() ||
		    tensor.scalar_type() != gradients.scalar_type())
			refuse(name, "gradients and residual must be contiguous, with the same "
				     "type and size");
	}
	if (count < 1 || count > gradients.numel() || gradients.numel() > INT32_MAX)
		refuse(name, "cannot select ", count, " of ", gradients.numel(), " elements");
	AT_DISPATCH_FLOATING_TYPES_AND2(
		at::kHalf, at::kBFloat16, gradients.scalar_type(), name, [&] {
			indices = largest_of(values.data_ptr<scalar_t>(),
					     residual ? gradients.data_ptr<scalar_t>() : nullptr,
					     count_of(values), static_cast<size_t>(count));
		});
	return at::tensor(indices, at::kInt);
}

/* ---- for Python ------------------------------------------------------------------------------ */

HarpBackend &harp_backend(const intrusive_ptr<c10d::Backend> &backend)
{
	auto *harp = dynamic_cast<HarpBackend *>(backend.get());

	if (!harp)
		throw_error(-EINVAL, "this process group's CPU backend is " +
					     backend->getBackendName() + ", not harp");
	return *harp;
}

/* Closes all groups at the end of the process, after sending messages of completed operations. */
void close_all()
{
	std::lock_guard<std::mutex> lock(open_lock);

	for (HarpBackend *backend : open_backends)
		backend->close_group();
	open_backends.clear();
	Completions::instance().drain();
}

py::dict stats(const intrusive_ptr<c10d::Backend> &backend)
{
	struct harp_coll_stats counters {
	};

	counters.size = sizeof(counters);
	harp_coll_stats(harp_backend(backend).group(), &counters);
	return py::dict(py::arg("net_sent_bytes") = counters.net_sent_bytes,
			py::arg("net_sent_messages") = counters.net_sent_messages,
			py::arg("shm_sent_bytes") = counters.shm_sent_bytes,
			py::arg("shm_sent_messages") = counters.shm_sent_messages,
			py::arg("net_received_bytes") = counters.net_received_bytes,
			py::arg("net_received_messages") = counters.net_received_messages,
			py::arg("shm_received_bytes") = counters.shm_received_bytes,
			py::arg("shm_received_messages") = counters.shm_received_messages,
			py::arg("operations") = counters.operations);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
	module.def(
		"create",
		[](const intrusive_ptr<c10d::Store> &store, int rank, int size, int64_t timeout_ms,
		   const std::string &name, const std::string &plugin, int wire) {
			return intrusive_ptr<c10d::Backend>(c10::make_intrusive<HarpBackend>(
				store, rank, size, milliseconds(timeout_ms), name, plugin,
				static_cast<harp_coll_wire>(wire)));
		},
		py::call_guard<py::gil_scoped_release>());
	module.def("close_all", close_all, py::call_guard<py::gil_scoped_release>());
	module.def("stats", stats);
	module.def("largest", largest, py::call_guard<py::gil_scoped_release>());
}
