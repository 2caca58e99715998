// SPDX-License-Identifier: GPL-2.0
/*
 * The device at the other end.
 */

#include "krdma_smoke_c.h"

#include <linux/slab.h>

int peer_init(struct peer *peer, const char *name)
{
	mutex_init(&peer->lock);
	INIT_LIST_HEAD(&peer->offers);
	peer->name = name;
	peer->shown = kasprintf(GFP_KERNEL, NAME_FMT, NAME_ARGS(name));
	return peer->shown ? 0 : -ENOMEM;
}

void peer_destroy(struct peer *peer)
{
	kfree(peer->shown);
}

bool peer_is_there(struct peer *peer)
{
	guard(mutex)(&peer->lock);
	return !list_empty(&peer->offers);
}

/* Returns references to the device and to what tells that it is going. */
struct ib_device *peer_current(struct peer *peer, struct stop **stop)
{
	struct offer *last;

	guard(mutex)(&peer->lock);

	last = list_first_entry_or_null(&peer->offers, struct offer, node);
	if (!last)
		return NULL;

	device_hold(last->device);
	*stop = stop_get(last->stop);
	return last->device;
}

void offer_rename(struct peer *peer, struct offer *offer, const char *name)
{
	guard(mutex)(&peer->lock);

	if (strcmp(peer->name, name))
		list_del_init(&offer->node);
	else if (list_empty(&offer->node))
		list_add(&offer->node, &peer->offers);
}

struct offer *offer_create(struct peer *peer, struct ib_device *device,
			   const char *name)
{
	struct offer *offer = kzalloc_obj(*offer);

	if (!offer)
		return NULL;

	offer->stop = stop_create();
	if (!offer->stop) {
		kfree(offer);
		return NULL;
	}

	INIT_LIST_HEAD(&offer->node);
	offer->device = device;
	offer_rename(peer, offer, name);
	return offer;
}

void offer_destroy(struct peer *peer, struct offer *offer)
{
	raise(&offer->stop->raised);
	scoped_guard(mutex, &peer->lock)
		list_del(&offer->node);
	stop_put(offer->stop);
	kfree(offer);
}
