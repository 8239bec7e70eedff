/* SPDX-License-Identifier: Apache-2.0 */
/* lane_page_impl.h - what lane_page.c (the page) and lane_rows.c (comms and lanes) share. */
#ifndef HARP_PLUGIN_LANE_PAGE_IMPL_H
#define HARP_PLUGIN_LANE_PAGE_IMPL_H

#include "stats/lane_page.h"

#define PAGE_NOWHERE UINT32_MAX

enum page_table { PAGE_COMMS, PAGE_LANES, PAGE_TABLES };

/* The page as any thread finds it; NULL when there is none. */
const struct harp_page_job *page_get(void);
/* A record of the table, or PAGE_NOWHERE (which is counted as hidden); *serial: how many were wanted so far. */
uint32_t page_take(enum page_table table, uint64_t *serial);
/* Nobody's any more: empty. */
void page_give(enum page_table table, uint32_t place);
/* Comms or lanes that are open: so many more. */
void page_open_add(enum page_table table, int change);
/* "?" for a device that there isn't. */
void page_ifname(char ifname[16], int dev);

/* The record of HARP_PAGE_RAILS for lanes of a kind over a device, made at the first. */
unsigned page_rail(int dev, enum harp_page_kind kind);
void page_rail_add(unsigned rail, enum harp_rail_value value, uint64_t n);
void page_rail_srtt(unsigned rail, uint64_t srtt_ns);

#endif
