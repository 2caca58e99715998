// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events.

use crate::bindings;
use kernel::fmt;

/// The kind of an asynchronous event: `enum ib_event_type`.
///
/// Displayed as its number in `include/rdma/ib_verbs.h`.
#[derive(Clone, Copy)]
pub(crate) struct Event(bindings::ib_event_type);

impl Event {
    /// Copies the kind of an event that a handler was given.
    ///
    /// # Safety
    ///
    /// `event` must point to a valid `struct ib_event`.
    pub(super) unsafe fn from_raw(event: *const bindings::ib_event) -> Self {
        // SAFETY: By the safety requirement.
        Self(unsafe { (*event).event })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
