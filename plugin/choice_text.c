/* SPDX-License-Identifier: Apache-2.0 */
/* choice_text.c - says in words what choice.c has found. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "choice_impl.h"

#define ANNOUNCE_FIRST_NS 100000000u /* after the kinds: most of what is found is found by then */
#define ANNOUNCE_GAP_NS 1000000000u
#define ANNOUNCE_GAP_NS_MAX 64000000000u
#define TEXT_CHANGES 3u /* so many are named */
#define TEXT_BULK 10u   /* from this class on (64 KiB) a rate says more than a time */

static const char *const way_short[CHOICE_WAYS] = { "HARP", "kernel", "both" };

struct text {
	char *at;
	size_t left;
};

static void __attribute__((format(printf, 2, 3))) text_add(struct text *text, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(text->at, text->left, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= text->left)
		n = text->left ? (int)text->left - 1 : 0; /* cut */
	text->at += n;
	text->left -= (size_t)n;
}

static void text_size(struct text *text, unsigned class)
{
	uint64_t bytes = UINT64_C(64) << class;

	if (bytes >= UINT64_C(1) << 20)
		text_add(text, "%" PRIu64 " MiB", bytes >> 20);
	else if (bytes >= 1024)
		text_add(text, "%" PRIu64 " KiB", bytes >> 10);
	else
		text_add(text, "%" PRIu64 " B", bytes);
}

/* "3.1 us", "37 Gbit/s"; the unit once is enough. */
static void text_cost(struct text *text, unsigned class, uint32_t ns, bool unit)
{
	if (class >= TEXT_BULK)
		text_add(text, "%.1f%s", 8.0 * (double)(UINT64_C(64) << class) / (ns ? ns : 1),
			 unit ? " Gbit/s" : "");
	else
		text_add(text, "%.1f%s", ns / 1e3, unit ? " us" : "");
}

/* As the ways are compared. */
static uint32_t text_ns(const struct choice_cell *cell, unsigned index, unsigned way)
{
	return choice_takes_turns(index) ? choice_low(&cell->cost[way])
					 : choice_typical(&cell->cost[way]);
}

static void text_costs(struct text *text, const struct choice *choice, unsigned index, bool size)
{
	const struct choice_cell *cell = &choice->cells[index];
	unsigned class = index % CHOICE_CLASSES;

	text_add(text, " (");
	if (size) {
		text_size(text, class);
		text_add(text, ": ");
	}
	text_cost(text, class, text_ns(cell, index, cell->way), true);
	for (unsigned way = 0; way < CHOICE_WAYS; way++) {
		if (way == cell->way || !cell->cost[way].count ||
		    !choice_allows(choice, index, way))
			continue;
		text_add(text, ", %s ", way_short[way]);
		text_cost(text, class, text_ns(cell, index, way), false);
	}
	text_add(text, ")");
}

/* Neighbours that go the same way are one range: "up to 16 KiB by HARP (64 B: 3.1 us, kernel 6.0), larger by ...". */
static bool text_ranges(struct text *text, const struct choice *choice, unsigned first,
			const char *title)
{
	unsigned previous = CHOICE_CELLS, shown = CHOICE_CELLS;
	bool some = false;

	for (unsigned i = first; i <= first + CHOICE_CLASSES; i++) {
		bool end = i == first + CHOICE_CLASSES;

		if (!end && !choice->cells[i].own)
			continue;
		if (previous != CHOICE_CELLS &&
		    (end || choice->cells[i].way != choice->cells[previous].way)) {
			text_add(text, "%s", some ? ", " : title);
			if (end) {
				text_add(text, some ? "larger" : "all");
			} else {
				text_add(text, "up to ");
				text_size(text, previous - first);
			}
			text_add(text, " by %s", way_short[choice->cells[previous].way]);
			text_costs(text, choice, shown, true);
			some = true;
			previous = CHOICE_CELLS;
		}
		if (end)
			break;
		/* Of a range of small messages the first is shown, of long ones the longest. */
		if (previous == CHOICE_CELLS || i - first >= TEXT_BULK)
			shown = i;
		previous = i;
	}
	return some;
}

/* Nothing has been measured but the preambles. */
static void text_connect(struct text *text, const struct choice *choice)
{
	for (unsigned way = WAY_HARP; way <= WAY_KERNEL; way++) {
		text_add(text, "%s%s TCP", way ? " and " : "", way_short[way]);
		if (choice->rtt_ns[way])
			text_add(text, " (round trip %.1f us)", (double)choice->rtt_ns[way] / 1e3);
	}
	text_add(text, ": which is faster for which size is found in use");
}

static uint32_t text_sum(const struct choice *choice)
{
	uint32_t sum = choice->kinds;

	for (unsigned i = 0; i < CHOICE_CELLS; i++)
		sum = sum * 31 + (choice->cells[i].own ? choice->cells[i].way + 1u : 0);
	return sum;
}

static void text_words(struct text *text, const struct choice *choice)
{
	bool some = text_ranges(text, choice, 0, "messages one at a time: ");

	some |= text_ranges(text, choice, CHOICE_CLASSES,
			    some ? "; in streams: " : "messages in streams: ");
	if (!some)
		text_connect(text, choice);
}

void choice_words(const struct choice *choice, char *text, size_t len)
{
	struct text out = { text, len };

	text_words(&out, choice);
}

/* What goes another way than was said before. */
static void text_changes(struct text *text, const struct choice *choice)
{
	unsigned count = 0;

	for (unsigned i = 0; i < CHOICE_CELLS; i++) {
		const struct choice_cell *cell = &choice->cells[i];

		if (!cell->own || !choice->said[i] || choice->said[i] == cell->way + 1)
			continue;
		if (count++ >= TEXT_CHANGES)
			continue;
		text_add(text, count == 1 ? "; changed: " : ", ");
		text_size(text, i % CHOICE_CLASSES);
		text_add(text, "%s from %s to %s", i < CHOICE_CLASSES ? "" : " in streams",
			 way_short[choice->said[i] - 1], way_short[cell->way]);
		text_costs(text, choice, i, false);
	}
	if (count > TEXT_CHANGES)
		text_add(text, ", and %u more", count - TEXT_CHANGES);
}

bool choice_announce(struct choice *choice, uint64_t now_ns, char *text, size_t len)
{
	struct text out = { text, len };
	uint32_t sum = text_sum(choice);

	choice->news = false;
	if (sum == choice->announced || !len || choice->kinds != (LANE_HARP | LANE_KERNEL))
		return false;
	choice->announced = sum;
	choice->announce_ns =
		now_ns + (choice->announce_gap_ns ? choice->announce_gap_ns : ANNOUNCE_FIRST_NS);
	choice->announce_gap_ns = !choice->announce_gap_ns ? ANNOUNCE_GAP_NS
				  : choice->announce_gap_ns < ANNOUNCE_GAP_NS_MAX
					  ? 2 * choice->announce_gap_ns
					  : ANNOUNCE_GAP_NS_MAX;
	text_words(&out, choice);
	text_changes(&out, choice);
	for (unsigned i = 0; i < CHOICE_CELLS; i++)
		if (choice->cells[i].own)
			choice->said[i] = (uint8_t)(choice->cells[i].way + 1);
	return true;
}

void choice_report(const struct choice *choice, char *text, size_t len)
{
	struct text out = { text, len };
	bool first = true;

	if (len)
		*text = '\0';
	for (unsigned class = 0; class < CHOICE_CLASSES; class ++) {
		const struct choice_count *count = &choice->counts[class];
		bool begun = false;

		for (unsigned way = 0; way < CHOICE_WAYS; way++) {
			if (!count->messages[way])
				continue;
			if (!begun) {
				text_add(&out, first ? "messages sent, by size: " : "; ");
				text_size(&out, class);
				text_add(&out, ":");
			}
			text_add(&out, "%s %" PRIu64 " %s", begun ? "," : "", count->messages[way],
				 way_short[way]);
			begun = true;
			first = false;
		}
	}
}
