// SPDX-License-Identifier: GPL-2.0

//! Clients, which `ib_core` tells of devices.

use super::{
    device::looks_right,
    ib_core::Compatible,
    to_result,
    Device, //
};
use crate::bindings;
use core::{
    marker::PhantomPinned,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    prelude::*,
    str::{
        as_char_ptr_in_const_context,
        BStr, //
    },
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    },
    types::Opaque, //
};

/// What wants to hear of RDMA devices: `struct ib_client`.
///
/// For one device the callbacks come one after the other: first [`add`](Client::add), then any
/// number of [`rename`](Client::rename), and in the end the context is dropped, which stands for
/// `remove`. Those of different devices can run at the same time.
///
/// `add` and `rename` run with locks of `ib_core` held. They may sleep but should be quick, for
/// they hold up every other device and client. They must not register or unregister clients or
/// devices, nor rename any.
///
/// A type of client is declared by [`declare_client!`].
pub(crate) trait Client: Send + Sync + Sized + 'static {
    /// The name of the client.
    const NAME: &'static CStr;

    /// What the client keeps for a device; dropped when the device goes away or the registration
    /// is dropped, whichever comes first.
    ///
    /// Dropping it must give back, at once, all that was made on the device. It may sleep, and no
    /// lock of `ib_core` is held.
    type Context<'d>: Send;

    /// A device has appeared, or was there when the client was registered.
    ///
    /// What is returned is run at once, and makes the context in its place; whatever `add` does is to
    /// be done by that.
    ///
    /// A client that may want the device later, under another name, has to return a context: where
    /// `add` fails, `ib_core` never mentions the device to this client again, nor tells anybody
    /// that it failed.
    ///
    /// # Errors
    ///
    /// Any; the client has undone what it did.
    fn add<'d>(&self, device: Device<'d>, name: &BStr) -> impl Init<Self::Context<'d>, Error>;

    /// There is a device that is left alone: neither `add` nor anything else is called for it.
    fn left_alone(&self, why: LeftAlone<'_>);

    /// A device now has the name `name`.
    fn rename<'d>(&self, device: Device<'d>, name: &BStr, context: &mut Self::Context<'d>);

    /// `ib_register_client()` has returned `result`.
    ///
    /// If that is `Ok`, `add` was called for every device that there was; else the client is not
    /// registered, and the context of every device has been dropped.
    fn registered(&self, result: Result);
}

/// Why a device is left alone.
pub(crate) enum LeftAlone<'a> {
    /// By the looks of it, it is not laid out as the devices of the `ib_core` that the module was
    /// built for. So its name cannot be told either.
    Layout,
    /// There is no memory for the context of the device that bears this name.
    Memory(&'a BStr),
}

/// A [`Client`] that has a [`Slot`].
///
/// # Safety
///
/// `slot()` must return the same slot each time.
pub(crate) unsafe trait DeclaredClient: Client {
    /// Returns the place where the one registration of this client is noted.
    fn slot() -> &'static Slot<Self>;
}

/// Declares a type of client, which has one static and can be registered once at a time.
macro_rules! declare_client {
    ($client:ty) => {
        const _: () = {
            static SLOT: $crate::verbs::client::Slot<$client> = $crate::verbs::client::Slot::new();

            // SAFETY: There is one static.
            unsafe impl $crate::verbs::client::DeclaredClient for $client {
                fn slot() -> &'static $crate::verbs::client::Slot<Self> {
                    &SLOT
                }
            }
        };
    };
}
pub(crate) use declare_client;

/// Where the callbacks of a [`Client`] find its registration.
///
/// `ib_core` gives `add` nothing but the device, and C code goes by the address of its static
/// `struct ib_client`. This is the same for a registration that lives elsewhere: one static for
/// each type of client.
///
/// # Invariants
///
/// The pointer is null, or points to a [`Registration`] that can be borrowed.
pub(crate) struct Slot<T: DeclaredClient>(Atomic<*mut Registration<T>>);

impl<T: DeclaredClient> Slot<T> {
    /// Makes an empty slot.
    pub(crate) const fn new() -> Self {
        // INVARIANT: Null.
        Self(Atomic::new(null_mut()))
    }
}

/// The registration of a [`Client`]; unregisters it when dropped.
///
/// `ib_unregister_client()` is a full fence: once it has returned, every context is dropped and no
/// callback runs or will run. It must not be dropped by a callback, nor with a lock held that a
/// callback takes.
///
/// # Invariants
///
/// `client` is registered with `ib_core`, and `T::slot()` points here.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: DeclaredClient> {
    #[pin]
    client: Opaque<bindings::ib_client>,
    #[pin]
    data: T,
    // `ib_core` and the slot keep the address.
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: A client may be unregistered by another thread than the one that registered it, and
// `T: Send`.
unsafe impl<T: DeclaredClient> Send for Registration<T> {}

// SAFETY: What is shared of it is `data`, and `T: Sync`; C synchronises its use of `client`.
unsafe impl<T: DeclaredClient> Sync for Registration<T> {}

impl<T: DeclaredClient> Registration<T> {
    /// Registers a client by `ib_register_client()`.
    ///
    /// [`Client::add`] is called for the devices that are there. Must not be called from a callback
    /// of any client. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a registration of this client already, `ENOMEM`.
    pub(crate) fn new(_: Compatible, data: impl PinInit<T, Error>) -> impl PinInit<Self, Error> {
        // The order matters: `data` is there before the first callback can use it.
        try_pin_init!(&this in Self {
            data <- data,
            _pin: PhantomPinned,
            client <- Opaque::try_ffi_init(move |client: *mut bindings::ib_client| {
                // SAFETY: The slot is writable memory for a `struct ib_client`.
                unsafe {
                    client.write(bindings::ib_client {
                        name: as_char_ptr_in_const_context(T::NAME),
                        add: Some(Self::add_callback),
                        remove: Some(Self::remove_callback),
                        rename: Some(Self::rename_callback),
                        ..pin_init::zeroed()
                    })
                };

                // INVARIANT: The other fields have been initialised by now, and `client`, which C
                // goes on to use, is opaque.
                T::slot()
                    .0
                    .cmpxchg(null_mut(), this.as_ptr(), Full)
                    .map_err(|_| EBUSY)?;

                // SAFETY: The memory is pinned, and `PinnedDrop` unregisters the client before it
                // is freed. All members that C wants to be set are set, the others are zero. The
                // caller's `Compatible` says that C looks for them where they are.
                let result = to_result(unsafe { bindings::ib_register_client(client) });

                // A registration that failed has called `remove` for every `add`.
                if result.is_err() {
                    T::slot().0.store(null_mut(), Release);
                }

                // SAFETY: All fields have been initialised by now, and are only borrowed shared.
                unsafe { this.as_ref() }.data.registered(result);

                // INVARIANT: The client is registered if this returns `Ok`.
                result
            }),
        })
    }

    /// Returns the client.
    pub(crate) fn client(&self) -> &T {
        &self.data
    }

    /// Returns the registration to a callback of the client.
    ///
    /// # Safety
    ///
    /// `'a` must end before the callback returns.
    unsafe fn current<'a>() -> Option<&'a Self> {
        // Pairs with `cmpxchg()` in `new()`.
        let this = T::slot().0.load(Acquire);

        // SAFETY: By the type invariant of `Slot` this is null or a registration. It stays until
        // `ib_unregister_client()` has returned, which waits for callbacks that run.
        unsafe { this.as_ref() }
    }

    /// `ib_client.add`.
    ///
    /// # Safety
    ///
    /// Must be called by `ib_core` only, with a valid device.
    unsafe extern "C" fn add_callback(device: *mut bindings::ib_device) -> c_int {
        // SAFETY: The reference is used in this callback only.
        let this = unsafe { Self::current() };

        let (Some(this), Some(device)) = (this, NonNull::new(device)) else {
            return ENODEV.to_errno();
        };

        // `add_client_context()` is called with `devices_rwsem` held.
        if !looks_right(device) {
            this.data.left_alone(LeftAlone::Layout);
            return EINVAL.to_errno();
        }

        // SAFETY: `ib_core` does not let a device go before `remove` has returned, or this function
        // has failed. The lifetime is that of the context, which has ended by then. The device
        // looks right.
        let device = unsafe { Device::from_raw(device) };

        match this.add(device) {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }

    /// Has the client make its context of a device, and leaves that with `ib_core`.
    fn add(&self, device: Device<'_>) -> Result {
        // SAFETY: `add_client_context()` is called with `devices_rwsem` held.
        let name = unsafe { device.name() };

        // First of all, so that nothing has to be undone for want of memory. `ib_core` drops the
        // error, and nobody else knows of the device.
        let context = KBox::<T::Context<'_>>::new_uninit(GFP_KERNEL)
            .inspect_err(|_| self.data.left_alone(LeftAlone::Memory(name)))?;

        let context = context.write_init(self.data.add(device, name))?;

        // SAFETY: The device is valid, and the client is being added to it. `ib_core` hands the
        // pointer back in `rename` and, once, in `remove`.
        unsafe {
            bindings::ib_set_client_data(
                device.as_raw(),
                self.client.get(),
                KBox::into_raw(context).cast(),
            )
        };

        Ok(())
    }

    /// `ib_client.rename`.
    ///
    /// # Safety
    ///
    /// Must be called by `ib_core` only, with a valid device and what `add()` has set as client
    /// data.
    unsafe extern "C" fn rename_callback(device: *mut bindings::ib_device, context: *mut c_void) {
        // SAFETY: The reference is used in this callback only.
        let this = unsafe { Self::current() };

        let (Some(this), Some(device)) = (this, NonNull::new(device)) else {
            return;
        };

        // SAFETY: As in `add_callback()`: the lifetime is that of the context, which exists because
        // the device looked right.
        let device = unsafe { Device::from_raw(device) };

        // SAFETY: `ib_device_rename()` holds `devices_rwsem`.
        let name = unsafe { device.name() };

        // SAFETY: This is null, or what `add()` made, and nobody else uses it: other renaming and
        // `add` begin with `devices_rwsem` held for writing, and `ib_device_rename()` holds it;
        // `remove` begins with the device's `client_data_rwsem` held for writing, and
        // `ib_device_rename()` holds that as well.
        if let Some(context) = unsafe { context.cast::<T::Context<'_>>().as_mut() } {
            this.data.rename(device, name, context);
        }
    }

    /// `ib_client.remove`.
    ///
    /// # Safety
    ///
    /// Must be called by `ib_core` only, with what `add_callback()` has set as client data.
    unsafe extern "C" fn remove_callback(_device: *mut bindings::ib_device, context: *mut c_void) {
        let context = context.cast::<T::Context<'_>>();

        if !context.is_null() {
            // SAFETY: `add()` made the pointer from such a box. `remove_client_context()` calls
            // this once for each `add` that succeeded, after it has waited for `rename`, and does
            // not touch the pointer afterwards.
            drop(unsafe { KBox::from_raw(context) });

            if cfg!(krdma_smoke_bug = "use-after-free") {
                // SAFETY: None, on purpose: KASAN has to say so.
                unsafe { context.cast::<u8>().read_volatile() };
            }
        }
    }
}

#[pinned_drop]
impl<T: DeclaredClient> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the client is registered.
        unsafe { bindings::ib_unregister_client(self.client.get()) };

        // No callback runs any more.
        T::slot().0.store(null_mut(), Release);
    }
}
