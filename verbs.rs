// SPDX-License-Identifier: GPL-2.0

//! RDMA verbs for in-kernel consumers.
//!
//! Safe wrappers of `ib_core`'s kernel verbs, one module for each object. Nothing in here knows
//! what its consumer uses them for.
//!
//! # Ownership
//!
//! [`client::Registration`] owns the `struct ib_client`. `ib_core` lends each device to the client
//! from `add` until `remove` returns; the lifetime `'d` of [`Device`] stands for that time, and all
//! that is made on a device carries it. [`QueuePairs`] own the [`CompletionQueue`] and the
//! [`ProtectionDomain`] that they were made with, so that these can go only after them, as `ib_core`
//! demands; and so does the queue pair of an [`Endpoint`]. All of these are destroyed when they are
//! dropped, and have to be dropped, not forgotten, before `'d` ends and before the module goes: their
//! handlers are code of the module.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod buffer;
pub(crate) mod client;
mod cq;
mod device;
mod endpoint;
mod event;
pub(crate) mod ib_core;
mod mr;
mod pd;
mod port;
mod qp;
mod task;
mod wc;
mod wr;

pub(crate) use self::{
    buffer::Buffer,
    cq::{
        CompletionQueue,
        CompletionQueueAttributes,
        PollContext,
        PolledCompletionQueue, //
    },
    device::{
        Capabilities,
        Device,
        DeviceReference, //
    },
    endpoint::{
        Endpoint,
        EndpointAttributes, //
    },
    event::Event,
    pd::ProtectionDomain,
    port::{
        Address,
        PathError,
        Port,
        PortError, //
    },
    qp::{
        QueuePairAttributes,
        QueuePairs,
        Room,
        State, //
    },
    task::{
        relax,
        Job,
        Stop,
        Task, //
    },
    wc::{
        now,
        Opcode,
        Status,
        WorkCompletion, //
    },
    wr::Request,
};

use kernel::prelude::*;

/// Makes a result of what a function of C has returned, an errno if it is negative.
///
/// That of the kernel crate does the same, but is a call, and what has to be cheap comes by here.
#[inline]
fn to_result(ret: c_int) -> Result {
    if ret < 0 {
        Err(Error::from_errno(ret))
    } else {
        Ok(())
    }
}

/// A function of `ib_core` has failed: which, and how.
pub(crate) struct CallError {
    pub(crate) function: &'static str,
    pub(crate) error: Error,
}

impl CallError {
    /// There was no memory, or something else has failed with what is allocated.
    pub(crate) fn of_memory(error: impl Into<Error>) -> Self {
        of("allocating memory")(error)
    }
}

/// Makes a [`CallError`] of an error.
pub(crate) fn of<E: Into<Error>>(function: &'static str) -> impl FnOnce(E) -> CallError {
    move |error| CallError {
        function,
        error: error.into(),
    }
}

/// Tells whether an error is `EOPNOTSUPP`, which the kernel crate names from Linux 7.3 on.
pub(crate) fn is_unsupported(error: Error) -> bool {
    error.to_errno().unsigned_abs() == kernel::bindings::EOPNOTSUPP
}

/// Who uses the verbs: the name `ib_core` keeps of it, and what it is told.
///
/// The InfiniBand specification calls the software above the verbs the consumer.
///
/// The functions for events may be called as soon as the object exists, on any CPU, also while it
/// is being destroyed, but not afterwards. They must not destroy the object.
pub(crate) trait Consumer {
    /// The name under which the objects are listed, such as by `rdma resource show`.
    ///
    /// C keeps the pointer (`rdma_restrack_set_name()`), which is why it is `'static`.
    const NAME: &'static CStr;

    /// A completion was added to a queue for which notification was asked.
    ///
    /// `ib_comp_handler`. Runs in whichever context the device's driver has, interrupt context
    /// included: it must not sleep.
    fn completion();

    /// Something happened to a completion queue, such as an overrun.
    ///
    /// `ib_cq.event_handler`. Must not sleep.
    fn cq_event(event: Event);

    /// Something happened to a queue pair, such as a fatal error.
    ///
    /// `ib_qp_init_attr.event_handler`. Must not sleep.
    fn qp_event(event: Event);

    /// The C function `function` was called to destroy an object, and this is what it returned.
    ///
    /// Destroying happens in `Drop`, where an error cannot be returned. After an error the device
    /// keeps the object, and the module can no longer be unloaded. For kernel objects no driver may
    /// refuse (`ib_core` warns if one does), so nothing better is to be had. May sleep.
    fn destroyed(function: &'static str, result: Result);
}

/// Tells the consumer that `function` has returned `ret` for an object that was to be destroyed, and
/// the caller whether the object is gone.
///
/// An object that still exists refers to code and data of this module: its handlers and the
/// consumer's name. So the module has to stay. If it is being unloaded already, that comes too late;
/// then only a reboot helps.
fn destroyed<C: Consumer>(function: &'static str, ret: c_int) -> bool {
    let result = to_result(ret);

    if result.is_err() {
        // SAFETY: The code of a module that is loaded runs.
        unsafe {
            kernel::bindings::__module_get((&raw const kernel::bindings::__this_module).cast_mut())
        };
    }

    C::destroyed(function, result);

    result.is_ok()
}
