// SPDX-License-Identifier: GPL-2.0

//! The device at the other end.

use crate::verbs::{
    Device,
    DeviceReference,
    Stop, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::{
        BStr,
        CString, //
    },
    sync::{
        Arc,
        Mutex, //
    },
};

/// Which device is to be at the other end of every connection, and the one that bears its name.
#[pin_data]
pub(crate) struct Peer {
    name: &'static BStr,
    /// The name as it is shown.
    shown: CString,
    #[pin]
    current: Mutex<Option<(DeviceReference, Stop)>>,
}

impl Peer {
    /// Makes it, with no device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(name: &'static BStr, shown: CString) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                name,
                shown,
                current <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the name of the device as it is shown.
    pub(super) fn name(&self) -> &CStr {
        &self.shown
    }

    /// Returns the device, and what tells that it is going, if it is there.
    pub(super) fn current(&self) -> Option<(DeviceReference, Stop)> {
        self.current.lock().clone()
    }
}

/// A device is at the disposal of connections while it bears the name; until this is dropped, when
/// those that there are are told to stop.
pub(crate) struct Offer {
    peer: Arc<Peer>,
    stop: Stop,
}

impl Offer {
    /// Offers a device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(peer: Arc<Peer>, device: Device<'_>, name: &BStr) -> Result<Self> {
        let offer = Self {
            peer,
            stop: Stop::new()?,
        };

        offer.rename(device, name);
        Ok(offer)
    }

    /// Takes note of the name that the device has now.
    pub(crate) fn rename(&self, device: Device<'_>, name: &BStr) {
        if self.peer.name == name {
            let former = self
                .peer
                .current
                .lock()
                .replace((device.hold(), self.stop.clone()));

            // Not with the lock held.
            drop(former);
        } else {
            self.withdraw();
        }
    }

    /// Makes sure that the device is not the one that new connections take.
    fn withdraw(&self) {
        let former = self
            .peer
            .current
            .lock()
            .take_if(|(_, stop)| stop.is(&self.stop));

        drop(former);
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.stop.raise();
        self.withdraw();
    }
}
