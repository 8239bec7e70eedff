/* SPDX-License-Identifier: Apache-2.0 */
/* test_secrets.c - each secret of a stack comes from getrandom(), which this test replaces. */
#include <errno.h>
#include <sys/random.h>

#include "rig.h"

#define DRAWS_MAX 64u
#define SIGNALS 3u

static struct {
	unsigned draws, signals;
	unsigned fail_at; /* this draw and all later ones fail; 0: none */
	int error;        /* 0: a failing draw returns too few bytes */
	struct {
		size_t bytes;
		uint8_t value[256];
	} draw[DRAWS_MAX];
} kernel;

ssize_t getrandom(void *out, size_t bytes, unsigned flags)
{
	CHECK_EQ(flags, 0); /* blocks until the kernel has entropy */
	CHECK(bytes <= sizeof(kernel.draw[0].value));
	if (kernel.signals) {
		kernel.signals--;
		errno = EINTR;
		return -1;
	}
	CHECK(kernel.draws < DRAWS_MAX);
	if (++kernel.draws >= kernel.fail_at && kernel.fail_at) {
		errno = kernel.error;
		return kernel.error ? -1 : (ssize_t)bytes - 1;
	}
	for (size_t i = 0; i < bytes; i++)
		kernel.draw[kernel.draws - 1].value[i] = (uint8_t)(kernel.draws * 31 + i * 7 + 1);
	memcpy(out, kernel.draw[kernel.draws - 1].value, bytes);
	kernel.draw[kernel.draws - 1].bytes = bytes;
	return (ssize_t)bytes;
}

static int create(struct harp_stack **stack, struct harp_nic **card, uint64_t seed)
{
	struct harp_nic_callbacks nic = { .size = sizeof(nic),
					  .mac = { 2, 0, 0, 0, 0, 1 },
					  .receive = rig_receive,
					  .send = rig_send };
	struct harp_stack_options options = { .size = sizeof(options), .seed = seed };

	CHECK_EQ(harp_nic_callback_create(card, &nic), 0);
	*stack = NULL;
	return harp_stack_create(stack, *card, &options);
}

static void destroy(struct harp_stack *stack, struct harp_nic *card)
{
	harp_stack_destroy(stack);
	harp_nic_destroy(card);
}

/* Copies all secrets of a stack; returns their number. */
static unsigned get_secrets(const struct harp_stack *stack, struct siphash_key keys[8])
{
	const struct siphash_key all[] = {
		stack->eth.hash_key,     stack->ip.label_key,         stack->tcp.flows.secret,
		stack->tcp.isn_secret,   stack->tcp.challenge_secret, stack->tcp.cookie_secret,
		stack->tcp.ports.secret, stack->udp.ports.secret,
	};

	memcpy(keys, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}

static bool is_from_kernel(const struct siphash_key *key)
{
	for (unsigned i = 0; i < kernel.draws; i++)
		if (kernel.draw[i].bytes == sizeof(*key) &&
		    !memcmp(kernel.draw[i].value, key, sizeof(*key)))
			return true;
	return false;
}

TEST(each_secret_comes_from_the_kernel)
{
	struct siphash_key keys[8];
	struct harp_stack *stack;
	struct harp_nic *card;
	unsigned count;

	memset(&kernel, 0, sizeof(kernel));
	kernel.signals = SIGNALS;
	CHECK_EQ(create(&stack, &card, 0), 0);
	CHECK_EQ(kernel.signals, 0);
	count = get_secrets(stack, keys);
	for (unsigned i = 0; i < count; i++) {
		CHECK(is_from_kernel(&keys[i]));
		for (unsigned j = 0; j < i; j++)
			CHECK(memcmp(&keys[i], &keys[j], sizeof(keys[i])));
	}
	/* One more draw seeds the generator, on which no key depends. */
	CHECK_EQ(kernel.draws, count + 1);
	destroy(stack, card);
}

/* Two generators with the same state give different keys. */
TEST(keys_do_not_depend_on_the_generator_state)
{
	struct rng a, b;
	struct siphash_key one, other;

	memset(&kernel, 0, sizeof(kernel));
	rng_seed_system(&a);
	b = a;
	one = rng_key(&a);
	other = rng_key(&b);
	CHECK(memcmp(&one, &other, sizeof(one)));
	CHECK_EQ(rng_u64(&a), rng_u64(&b));
}

TEST(a_seed_replays_all_secrets)
{
	struct siphash_key first[8], second[8];
	struct harp_stack *stack;
	struct harp_nic *card;
	unsigned count;

	memset(&kernel, 0, sizeof(kernel));
	CHECK_EQ(create(&stack, &card, 7), 0);
	count = get_secrets(stack, first);
	destroy(stack, card);
	CHECK_EQ(create(&stack, &card, 7), 0);
	get_secrets(stack, second);
	destroy(stack, card);
	CHECK(!memcmp(first, second, count * sizeof(first[0])));
	CHECK_EQ(kernel.draws, 0);
}

TEST(a_failed_draw_fails_the_stack)
{
	static const int errors[] = { ENOSYS, EPERM, 0 };
	struct harp_stack *stack;
	struct harp_nic *card;
	unsigned draws;

	memset(&kernel, 0, sizeof(kernel));
	CHECK_EQ(create(&stack, &card, 0), 0);
	destroy(stack, card);
	draws = kernel.draws;
	for (unsigned e = 0; e < 3; e++) {
		for (unsigned fail_at = 1; fail_at <= draws; fail_at++) {
			memset(&kernel, 0, sizeof(kernel));
			kernel.fail_at = fail_at;
			kernel.error = errors[e];
			CHECK_EQ(create(&stack, &card, 0), errors[e] ? -errors[e] : -EIO);
			CHECK(!stack);
			harp_nic_destroy(card);
		}
	}
}
