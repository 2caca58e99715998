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

/// Which device is to be at the other end of every connection, and those that bear its name.
#[pin_data]
pub(crate) struct Peer {
    name: &'static BStr,
    /// The name as it is shown.
    shown: CString,
    /// The last to come; there can be one in each network namespace.
    #[pin]
    last: Mutex<Option<KBox<Candidate>>>,
}

/// A device that bears the name.
struct Candidate {
    device: DeviceReference,
    stop: Stop,
    /// The one that came before it.
    former: Option<KBox<Candidate>>,
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
                last <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the name of the device as it is shown.
    pub(super) fn name(&self) -> &CStr {
        &self.shown
    }

    /// Returns the device, and what tells that it is going, if it is there; the last to come, if
    /// there are several.
    pub(super) fn current(&self) -> Option<(DeviceReference, Stop)> {
        self.last
            .lock()
            .as_ref()
            .map(|last| (last.device.clone(), last.stop.clone()))
    }

    fn add(&self, mut candidate: KBox<Candidate>) {
        let mut last = self.last.lock();

        candidate.former = last.take();
        *last = Some(candidate);
    }

    /// Removes the one with this flag, if it is there, and returns it.
    fn remove(&self, stop: &Stop) -> Option<KBox<Candidate>> {
        let mut last = self.last.lock();
        let mut place = &mut *last;

        while place.as_ref().is_some_and(|it| !it.stop.is(stop)) {
            place = &mut place.as_mut()?.former;
        }

        let mut found = place.take()?;

        *place = found.former.take();
        Some(found)
    }
}

/// A device is at the disposal of connections while it bears the name; until this is dropped, when
/// those that there are are told to stop.
pub(crate) struct Offer {
    peer: Arc<Peer>,
    stop: Stop,
    /// While it does not bear the name, what is to be added when it does.
    idle: Option<KBox<Candidate>>,
}

impl Offer {
    /// Offers a device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(peer: Arc<Peer>, device: Device<'_>, name: &BStr) -> Result<Self> {
        let stop = Stop::new()?;
        let candidate = Candidate {
            device: device.hold(),
            stop: stop.clone(),
            former: None,
        };
        let mut offer = Self {
            peer,
            stop,
            idle: Some(KBox::new(candidate, GFP_KERNEL)?),
        };

        offer.rename(name);
        Ok(offer)
    }

    /// Takes note of the name that the device has now.
    pub(crate) fn rename(&mut self, name: &BStr) {
        if self.peer.name != name {
            self.withdraw();
        } else if let Some(candidate) = self.idle.take() {
            self.peer.add(candidate);
        }
    }

    /// Makes sure that the device is not one that new connections take.
    fn withdraw(&mut self) {
        if let Some(candidate) = self.peer.remove(&self.stop) {
            self.idle = Some(candidate);
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.stop.raise();
        self.withdraw();
    }
}
