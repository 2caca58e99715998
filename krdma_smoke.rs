// SPDX-License-Identifier: GPL-2.0

//! A smoke test of the kernel verbs path of RDMA devices.
//!
//! The module takes the devices that bear the name it was given, makes a protection domain, a
//! completion queue and queue pairs on each, and says in the kernel log how that went.

use kernel::{
    fmt, new_mutex,
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

mod bindings;
mod debugfs;
mod modinfo;
mod param;
mod smoke;
mod traffic;
mod verbs;

use smoke::Resources;
use traffic::{
    Offer,
    Peer,
    Settings,
    Traffic, //
};
use verbs::{
    client::{
        declare_client,
        Client,
        LeftAlone,
        Registration, //
    },
    ib_core::{
        self,
        BuiltFor,
        Comparison,
        Compatible, //
    },
    Device,
    Stop,
    Task, //
};

module! {
    type: KrdmaSmoke,
    name: "krdma_smoke",
    description: "Smoke test of the kernel RDMA verbs path",
    license: "GPL",
}

param::parameter!(
    rdma_dev_name: charp = c"mlx5_0",
    "Name of the RDMA device to test; empty for every device (default: mlx5_0)"
);

param::parameter!(
    check_ib_core: bool = true,
    "Refuse to run with another ib_core than it was built for (default: Y)"
);

param::parameter!(
    queue_pairs: uint = 1,
    "Number of queue pairs to make on each device, which share a completion queue (default: 1)"
);

param::parameter!(
    traffic: uint = 0,
    "Number of messages that each test of traffic sends; 0 for no traffic (default: 0)"
);

param::parameter!(
    sizes: charp = Settings::SIZES,
    "Sizes of the messages in bytes (default: 8,4096,65536,1048576, as far as the device goes)"
);

param::parameter!(
    depth: uint = 1,
    "Number of messages that are outstanding (default: 1)"
);

param::parameter!(
    poll: charp = c"direct",
    "Who takes completions: direct, a busy loop; or workqueue, after an interrupt (default: direct)"
);

param::parameter!(
    peer: charp = c"",
    "Name of the RDMA device at the other end; empty for the same device (default: empty)"
);

param::parameter!(
    peer_port: uint = 0,
    "port= of the other end; 0 on the same device for the same, else as port= (default: 0)"
);

param::parameter!(
    peer_gid_index: int = -1,
    "gid_index= of the other end; -1 for one that goes with that of this end (default: -1)"
);

param::parameter!(
    port: uint = 0,
    "Number of the port; 0 for the first that is active (default: 0)"
);

param::parameter!(
    gid_index: int = -1,
    "Index of the GID for RoCE; -1 for one of RoCE v2 that goes with the other end (default: -1)"
);

param::parameter!(
    connections: uint = 0,
    "Number of connections to make before traffic, and to time; 0 for none (default: 0)"
);

param::parameter!(
    errors: bool = false,
    "Also cause an error, by a wrong key, and recover from it (default: N)"
);

#[pin_data(PinnedDrop)]
struct KrdmaSmoke {
    #[pin]
    registration: Registration<Watcher>,
}

impl kernel::InPlaceModule for KrdmaSmoke {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        pr_info!(
            "init, target rdma_dev_name={}\n",
            Printable(rdma_dev_name.value())
        );

        try_pin_init!(Self {
            registration <- Registration::new(
                check_running_ib_core()?,
                Watcher::new(
                    queue_pair_count()?,
                    Plan::new().inspect_err(|e| {
                        // Of a parameter that is wrong it has been said which.
                        if *e == ENOMEM {
                            pr_err!("init failed, ret={}: {}\n", e.to_errno(), advice(*e));
                        }
                    })?
                ),
            ),
        })
    }
}

/// Makes sure that the `ib_core` that is running is the one that the module was built for, and says
/// so where it is not, or where that cannot be told.
///
/// # Errors
///
/// `ENOEXEC`, as for a module that was built for another kernel.
fn check_running_ib_core() -> Result<Compatible> {
    if !check_ib_core.value() {
        pr_warn!("check_ib_core=0: it is not checked which ib_core is running\n");
        return Ok(Compatible::by_word_of_user());
    }

    match ib_core::compare() {
        Comparison::Same(compatible) => Ok(compatible),
        Comparison::Different(running) => {
            pr_err!(
                "built for ib_core {BuiltFor}, but ib_core {running} is running: \
                 run 'make' again, or load with check_ib_core=0 if you know that they are alike\n"
            );
            Err(ENOEXEC)
        }
        Comparison::OtherOrigin => {
            pr_err!(
                "built for ib_core {BuiltFor}, but an ib_core of {} is running: \
                 run 'make' again, or load with check_ib_core=0 if you know that they are alike\n",
                if BuiltFor.is_in_tree() {
                    "somebody else"
                } else {
                    "the kernel itself"
                }
            );
            Err(ENOEXEC)
        }
        Comparison::NotRecorded(compatible) => {
            pr_warn!("cannot check which ib_core is running: the build recorded none\n");
            Ok(compatible)
        }
        Comparison::NotReadable(compatible, error) => {
            pr_warn!(
                "cannot check which ib_core is running: its build-id is not readable, ret={}\n",
                error.to_errno()
            );
            Ok(compatible)
        }
    }
}

/// As many queue pairs of each device as have been tried. Each holds up all other devices and clients
/// for as long as its creation takes, and takes memory of the driver's: 25 KiB with soft-RoCE.
const QUEUE_PAIRS_MAX: u32 = 4096;

/// Returns how many queue pairs to make on each device; says so if there cannot be as many.
///
/// # Errors
///
/// `EINVAL`.
fn queue_pair_count() -> Result<usize> {
    match queue_pairs.value() {
        count @ 1..=QUEUE_PAIRS_MAX => Ok(count as usize),
        count => {
            pr_err!("queue_pairs={count}: there can be 1 to {QUEUE_PAIRS_MAX}\n");
            Err(EINVAL)
        }
    }
}

#[pinned_drop]
impl PinnedDrop for KrdmaSmoke {
    fn drop(self: Pin<&mut Self>) {
        // On all devices at once: they are removed one after another.
        if let Some(plan) = &self.registration.client().plan {
            plan.stop.raise();
        }

        // The registration is dropped after this and takes the resources with it.
        pr_info!("exit\n");
    }
}

/// Watches the devices come and go, and takes those that are wanted.
#[pin_data]
struct Watcher {
    /// Of the devices there are while the module is being loaded; `None` once that is over.
    #[pin]
    roll_call: Mutex<Option<RollCall>>,
    /// How many queue pairs to make on each device; not 0.
    queue_pair_count: usize,
    /// How to run traffic, if that is wanted.
    plan: Option<Plan>,
}

/// How to run traffic.
struct Plan {
    settings: Arc<Settings>,
    peer: Option<Arc<Peer>>,
    /// Stops all traffic.
    stop: Stop,
    /// Holds a directory for each device.
    directory: Arc<debugfs::Top>,
}

declare_client!(Watcher);

impl Watcher {
    fn new(queue_pair_count: usize, plan: Option<Plan>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            roll_call <- new_mutex!(Some(RollCall::default())),
            queue_pair_count,
            plan,
        })
    }

    /// Makes the resources on the device if it bears the wanted name.
    fn consider<'d>(&self, device: Device<'d>, name: &BStr) -> Option<Resources<'d>> {
        let matched = is_wanted(name);

        let _locked = cfg!(krdma_smoke_bug = "lock-twice").then(|| self.roll_call.lock());

        if cfg!(krdma_smoke_bug = "leaked-memory") {
            core::mem::forget(shown(name));
        }

        if let Some(roll_call) = &mut *self.roll_call.lock() {
            roll_call.note(name, matched);
        }

        if !matched {
            return None;
        }

        say("matched", name);

        Resources::create(device, self.queue_pair_count)
            .inspect_err(|e| failed("resource", name, *e))
            .ok()
    }
}

impl Plan {
    /// Makes a plan of the parameters, if traffic is wanted.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a parameter is wrong, which is said; `ENOMEM`.
    fn new() -> Result<Option<Self>> {
        let settings = Settings::new(
            traffic.value(),
            sizes.value(),
            depth.value(),
            poll.value(),
            [
                (port.value(), gid_index.value()),
                (peer_port.value(), peer_gid_index.value()),
            ],
            errors.value(),
            connections.value(),
        )?;

        let name = peer.value();

        if settings.messages == 0 {
            if connections.value() > 0 || errors.value() || !name.is_empty() {
                pr_notice!("connections=, errors= and peer= have no effect without traffic=\n");
            }

            return Ok(None);
        }

        Ok(Some(Self {
            settings: Arc::new(settings, GFP_KERNEL)?,
            stop: Stop::new()?,
            peer: if name.is_empty() {
                None
            } else {
                Some(Peer::new(name, shown(name)?)?)
            },
            directory: debugfs::Top::new(Watcher::NAME)?,
        }))
    }

    /// Has the device be the peer of others whenever it bears that name, if there is to be one.
    fn offer(&self, device: Device<'_>, name: &BStr) -> Option<Offer> {
        Offer::new(self.peer.clone()?, device, name)
            .inspect_err(|_| {
                pr_err!(
                    "no memory for RDMA device {} to be a peer; load the module again\n",
                    Printable(name)
                );
            })
            .ok()
    }

    /// Runs traffic on a device that was taken.
    fn run(&self, device: Device<'_>, name: &BStr) -> Option<KBox<Running>> {
        self.start(device, name)
            .inspect_err(|e| failed("traffic", name, *e))
            .ok()
    }

    /// Starts the traffic of a device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn start(&self, device: Device<'_>, name: &BStr) -> Result<KBox<Running>> {
        let directory = directory_name(name)?;
        let contents = traffic::File::new(&self.settings)?;
        // Before it has begun: it is not to be ended for want of this.
        let place = KBox::new_uninit(GFP_KERNEL)?;

        let running = Running {
            file: Some(self.show(&directory, &contents)?),
            _task: Task::start(Traffic::new(
                self.settings.clone(),
                device.hold(),
                shown(name)?,
                // Lines of several devices would be taken for one another's.
                rdma_dev_name.value().is_empty(),
                self.peer.clone(),
                self.stop.clone(),
                contents.clone(),
            ))?,
            contents,
        };

        Ok(place.write(running))
    }

    /// Shows results in debugfs, until what is returned is dropped; says where, if that is not in
    /// this directory: devices in different network namespaces can have the same name.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn show(&self, directory: &CStr, contents: &traffic::File) -> Result<ResultsFile> {
        let file = ResultsFile::new(
            self.directory.clone(),
            directory,
            c"results",
            contents.clone(),
        )?;

        if let Some(other) = file.other_name() {
            say_other_name(directory, other);
        }

        Ok(file)
    }
}

/// Says where the results of a device are, if that is not where one would look for them.
#[cold]
fn say_other_name(directory: &CStr, other: &CStr) {
    pr_notice!("the directory {directory} is taken, the results of this device are in {other}\n");
}

type ResultsFile = debugfs::File<traffic::File>;

/// The traffic of a device; dropping it stops it.
struct Running {
    _task: Pin<KBox<Task<Traffic>>>,
    contents: traffic::File,
    /// Shows the results in a directory that bears the device's name.
    file: Option<ResultsFile>,
}

impl Running {
    /// Shows the results under another name, and not under the former one, which another device may
    /// have next.
    // What it needs of the stack is not to be there for a device that is taken by its new name.
    #[inline(never)]
    fn rename(&mut self, plan: &Plan, name: &BStr) {
        self.file = None;
        self.file = directory_name(name)
            .and_then(|directory| plan.show(&directory, &self.contents))
            .inspect_err(|_| pr_err!("no memory to show the results of {}\n", Printable(name)))
            .ok();
    }
}

/// Returns the name of a device's directory: a device can have a `/` in its name, which becomes a
/// `!`, as in sysfs.
///
/// # Errors
///
/// `ENOMEM`.
fn directory_name(name: &BStr) -> Result<CString> {
    struct Parts<'a>(&'a BStr);

    impl fmt::Display for Parts<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut separator = "";

            self.0.split(|byte| *byte == b'/').try_for_each(|part| {
                f.write_fmt(fmt!("{separator}{}", BStr::from_bytes(part)))?;
                separator = "!";
                Ok(())
            })
        }
    }

    CString::try_from_fmt(fmt!("{}", Parts(name)))
}

/// What is kept for a device.
struct Kept<'d> {
    /// There is a peer, which it may be.
    offer: Option<Offer>,
    /// Its traffic, which goes before what it runs beside.
    running: Option<KBox<Running>>,
    /// What was made on it, which stays until the device goes, whatever its name is by then. `None`
    /// for a device that was not wanted so far, or on which the smoke test failed.
    resources: Option<Resources<'d>>,
}

impl Client for Watcher {
    const NAME: &'static CStr = c"krdma_smoke";

    type Context<'d> = Kept<'d>;

    fn add<'d>(&self, device: Device<'d>, name: &BStr) -> impl Init<Self::Context<'d>, Error> {
        // Every device is kept, as one that is not wanted can be renamed.
        try_init!(Kept {
            _: {
                say("found", name);
            },
            offer: self.plan.as_ref().and_then(|plan| plan.offer(device, name)),
            resources: self.consider(device, name),
            running: match (&*resources, &self.plan) {
                (Some(_), Some(plan)) => plan.run(device, name),
                _ => None,
            },
        })
    }

    fn left_alone(&self, why: LeftAlone<'_>) {
        match why {
            LeftAlone::Layout => pr_err!(
                "an RDMA device is laid out in another way than those of the ib_core this module \
                 was built for ({BuiltFor}); it is left alone; build the module again\n"
            ),
            LeftAlone::Memory(name) => pr_err!(
                "no memory for RDMA device {}, it is left alone; load the module again\n",
                Printable(name)
            ),
        }

        if let Some(roll_call) = &mut *self.roll_call.lock() {
            match why {
                // It is there, and what is wrong with it has been said.
                LeftAlone::Memory(name) if is_wanted(name) => roll_call.matched = true,
                _ => roll_call.left_alone = roll_call.left_alone.saturating_add(1),
            }
        }
    }

    fn rename<'d>(&self, device: Device<'d>, name: &BStr, context: &mut Self::Context<'d>) {
        pr_info!("RDMA device renamed to {}\n", Printable(name));

        if let Some(offer) = &mut context.offer {
            offer.rename(name);
        }

        if context.resources.is_none() {
            context.resources = self.consider(device, name);

            if let (Some(_), Some(plan)) = (&context.resources, &self.plan) {
                context.running = plan.run(device, name);
            }
        } else if let (Some(running), Some(plan)) = (&mut context.running, &self.plan) {
            running.rename(plan, name);
        }
    }

    fn registered(&self, result: Result) {
        let target = rdma_dev_name.value();

        if let Err(error) = result {
            pr_err!("ib_register_client failed, ret={}\n", error.to_errno());
            return;
        }

        let Some(roll_call) = self.roll_call.lock().take() else {
            return;
        };

        if roll_call.matched {
            return;
        }

        if !target.is_empty() {
            pr_notice!(
                "no RDMA device is named {}, waiting for it (there are: {roll_call})\n",
                Printable(target)
            );
        } else if roll_call.left_alone == 0 {
            pr_notice!("no RDMA device yet, waiting for one\n");
        } else {
            pr_notice!("no RDMA device that can be used, waiting for one\n");
        }
    }
}

/// Tells whether a device that bears this name is to be taken.
fn is_wanted(name: &BStr) -> bool {
    let target = rdma_dev_name.value();

    target.is_empty() || target == name
}

/// What the notice that nothing matched has to know.
#[derive(Default)]
struct RollCall {
    /// A device bore the wanted name.
    matched: bool,
    /// The names of the first devices that did not: as many as usually fit into one line of the
    /// log, which is 1 KiB.
    names: [Option<CString>; 8],
    /// How many more there were.
    others: usize,
    /// How many there were that cannot be used.
    left_alone: usize,
}

impl RollCall {
    fn note(&mut self, name: &BStr, matched: bool) {
        if matched {
            self.matched = true;
            return;
        }

        let room = self.names.iter_mut().find(|name| name.is_none());

        match (room, shown(name)) {
            (Some(room), Ok(name)) => *room = Some(name),
            _ => self.others = self.others.saturating_add(1),
        }
    }
}

impl fmt::Display for RollCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.names.iter().flatten();

        match names.next() {
            Some(name) => f.write_fmt(fmt!("{}", &**name))?,
            None => f.write_str("none")?,
        }

        for name in names {
            f.write_fmt(fmt!(", {}", &**name))?;
        }

        if self.others > 0 {
            f.write_fmt(fmt!(" and {} more", self.others))?;
        }

        if self.left_alone > 0 {
            f.write_fmt(fmt!(" and {} left alone", self.left_alone))?;
        }

        Ok(())
    }
}

/// A name from outside, shown so that it can neither forge a line of the log nor fill it: what is
/// not printable ASCII is escaped, and more than a device name can have is cut off.
struct Printable<'a>(&'a BStr);

impl Printable<'_> {
    /// `IB_DEVICE_NAME_MAX`.
    const LENGTH_MAX: usize = 64;
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get(..Self::LENGTH_MAX) {
            Some(start) if start.len() < self.0.len() => {
                f.write_fmt(fmt!("{}...", BStr::from_bytes(start)))
            }
            _ => fmt::Display::fmt(self.0, f),
        }
    }
}

/// Returns a name from outside as it is shown.
///
/// # Errors
///
/// `ENOMEM`.
fn shown(name: &BStr) -> Result<CString> {
    CString::try_from_fmt(fmt!("{}", Printable(name)))
}

/// Says what a device is.
// By itself, as what it takes of the stack would be there all the time in its callers.
#[inline(never)]
fn say(what: &str, name: &BStr) {
    pr_info!("{what} RDMA device {}\n", Printable(name));
}

/// Says that a part of the smoke test could not be done on a device, and what the user can do.
#[cold]
fn failed(part: &str, name: &BStr, error: Error) {
    pr_err!(
        "{part} smoke failed on {}, ret={}: {}\n",
        Printable(name),
        error.to_errno(),
        advice(error)
    );
}

/// What the user can do about a step that failed.
fn advice(error: Error) -> &'static str {
    match error {
        ENOMEM => "out of memory; free some, then load the module again",
        _ => "the driver's own messages may say why",
    }
}
