// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use super::{
    destroyed,
    Consumer,
    Device, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    str::as_char_ptr_in_const_context, //
};

/// A protection domain: which queue pairs may use which memory.
///
/// Deallocated when dropped, by `ib_dealloc_pd_user()`.
///
/// # Invariants
///
/// `ptr` is a protection domain that `__ib_alloc_pd()` returned for a [`Device<'d>`] and that
/// nobody else deallocates.
pub(crate) struct ProtectionDomain<'d, C: Consumer> {
    ptr: NonNull<bindings::ib_pd>,
    _device: PhantomData<(Device<'d>, C)>,
}

// SAFETY: `ib_core` lets a protection domain be used and deallocated by any thread
// (Documentation/infiniband/core_locking.rst, "Reentrancy"). No `C` is stored.
unsafe impl<C: Consumer> Send for ProtectionDomain<'_, C> {}

impl<'d, C: Consumer> ProtectionDomain<'d, C> {
    /// Allocates a protection domain by `__ib_alloc_pd()`, with no flags.
    ///
    /// There is no way to ask for `IB_PD_UNSAFE_GLOBAL_RKEY`, which would open all memory to the
    /// peer. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or what the device's driver says.
    pub(crate) fn alloc(device: Device<'d>) -> Result<Self> {
        // SAFETY: The device is valid by its type invariant. The name, whose pointer
        // `rdma_restrack_set_name()` keeps, lasts as long as the module, as does the protection
        // domain (see `destroyed()`).
        let ptr = from_err_ptr(unsafe {
            bindings::__ib_alloc_pd(device.as_raw(), 0, as_char_ptr_in_const_context(C::NAME))
        })?;

        // INVARIANT: `__ib_alloc_pd()` succeeded, and the pointer goes nowhere else.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            _device: PhantomData,
        })
    }

    /// Returns the key by which the device itself may reach any memory, for work requests of this
    /// protection domain.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: The protection domain is valid by the type invariant, and the key does not change.
        unsafe { (*self.as_raw()).local_dma_lkey }
    }

    /// Returns the `struct ib_pd`.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.ptr.as_ptr()
    }
}

impl<C: Consumer> Drop for ProtectionDomain<'_, C> {
    fn drop(&mut self) {
        if cfg!(krdma_smoke_bug = "leaked-pd") {
            return;
        }

        // SAFETY: By the type invariant this is the only call for this protection domain, and the
        // device is still there. `ib_core` wants it to be empty: all that is made on a protection
        // domain owns it. No user data goes with a kernel object.
        let ret = unsafe { bindings::ib_dealloc_pd_user(self.as_raw(), null_mut()) };

        destroyed::<C>("ib_dealloc_pd", ret);
    }
}
