// SPDX-License-Identifier: GPL-2.0

//! The smoke test of one device, step by step.

use crate::verbs::{
    CompletionQueue,
    CompletionQueueAttributes,
    Consumer,
    Device,
    Event,
    ProtectionDomain,
    QueuePairAttributes,
    QueuePairs,
    Room, //
};
use kernel::prelude::*;

/// Small enough for any device.
const COMPLETION_QUEUE: CompletionQueueAttributes = CompletionQueueAttributes {
    entries: 16,
    vector: 0,
};

const QUEUE_PAIR: QueuePairAttributes = QueuePairAttributes {
    send_work_requests: 16,
    receive_work_requests: 16,
    send_sges: 1,
    receive_sges: 1,
};

/// The resources that the smoke test made on a device.
///
/// Dropping it destroys them and says so.
pub(crate) struct Resources<'d> {
    _qps: QueuePairs<'d, Smoke>,
}

impl<'d> Resources<'d> {
    /// Makes a protection domain, a completion queue and `queue_pairs` queue pairs, and says how each
    /// step went.
    ///
    /// # Errors
    ///
    /// That of the step that failed. The steps before it are undone in reverse.
    pub(crate) fn create(device: Device<'d>, queue_pairs: usize) -> Result<Self> {
        let room = Room::new(queue_pairs)?;

        let pd = ProtectionDomain::alloc(device).inspect_err(|e| failed("ib_alloc_pd", *e))?;
        pr_info!("ib_alloc_pd success\n");

        let cq = CompletionQueue::create(device, &COMPLETION_QUEUE)
            .inspect_err(|e| failed("ib_create_cq", *e))?;
        pr_info!("ib_create_cq success\n");

        let mut qps = QueuePairs::new(room, pd, cq);

        qps.create(queue_pairs, &QUEUE_PAIR)
            .inspect_err(|e| failed_after(qps.len(), *e))?;
        say_created(&qps);
        pr_info!("resource smoke success\n");

        Ok(Self { _qps: qps })
    }
}

/// Says that all queue pairs have been created, and the number of the first.
// By itself, as what it takes of the stack would be there all the time in its callers.
#[inline(never)]
fn say_created(qps: &QueuePairs<'_, Smoke>) {
    let first = qps.number(0).unwrap_or(0);

    match qps.len().saturating_sub(1) {
        0 => pr_info!("ib_create_qp success, qpn={first}\n"),
        others => pr_info!("ib_create_qp success, qpn={first} and {others} more\n"),
    }
}

/// Says that a step failed.
#[cold]
fn failed(step: &str, error: Error) {
    pr_err!("{step} failed, ret={}\n", error.to_errno());
}

/// Says that a queue pair could not be created, after so many that could.
#[cold]
fn failed_after(count: usize, error: Error) {
    match count {
        0 => failed("ib_create_qp", error),
        _ => pr_err!(
            "ib_create_qp failed, ret={}, after {count} queue pairs\n",
            error.to_errno()
        ),
    }
}

/// The user of the verbs, as `rdma resource show` names it.
pub(crate) struct Smoke;

impl Consumer for Smoke {
    const NAME: &'static CStr = c"krdma_smoke";

    fn completion() {
        pr_info!("CQ completion callback\n");
    }

    fn cq_event(event: Event) {
        pr_info!("CQ event {event}\n");
    }

    fn qp_event(event: Event) {
        pr_info!("QP event {event}\n");
    }

    fn destroyed(function: &'static str, result: Result) {
        match result {
            Ok(()) => pr_info!("{function} success\n"),
            Err(error) => {
                failed(function, error);
                pr_err!("the driver keeps an object that refers to this module; reboot\n");
            }
        }
    }
}
