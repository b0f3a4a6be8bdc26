//! A TCP proxy that stands in for a bad network.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    flow::{Condition, Flow, Flows, OpenFlow, Reader},
    origin,
};

/// Maximum number of bytes that travel as one chunk.
const CHUNK: usize = 64 * 1024;

/// Maximum number of chunks on the way in one direction of one connection. Beyond it the sender has to wait, as a full
/// TCP window would make it.
const IN_FLIGHT: usize = 1024;

/// A TCP proxy on a loopback port of its own, before one server.
///
/// It passes everything on unless ordered otherwise; an order holds for the open connections and those to come. It
/// works on a thread of its own, so it serves clients of any runtime, and may sit in a `static`. Dropping it closes
/// everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    network: watch::Sender<Network>,
    flows: Flows,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// A fault between one process and the server. See the methods of [`Proxy`] for their meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Every chunk of bytes is late by this much, in each direction. The order is kept.
    Delay(Duration),
    /// As [`Proxy::black_hole`].
    BlackHole,
    /// As [`Proxy::black_hole_replies`].
    BlackHoleReplies,
    /// As [`Proxy::cut`].
    Cut,
}

/// The present state of the network: for everybody, and for some processes by their ids.
#[derive(Clone, Debug, Default)]
struct Network {
    all: Path,
    from: HashMap<u32, Path>,
    /// The command after which nothing gets through any more.
    last: Option<String>,
    /// Whether it has been sent. Shared, as the connections only read the rest.
    is_over: Arc<AtomicBool>,
}

/// The present state of the way to the server.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    delay: Duration,
    hold_requests: bool,
    hold_replies: bool,
    refuse: bool,
    /// Number of times that all connections were cut: one that was accepted at a lower count has to go. A count, as a
    /// flag that is set and cleared in quick succession might be missed.
    cuts: u64,
}

/// The two ways through the proxy.
#[derive(Clone, Copy)]
enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// The load on the way in one direction.
enum Cargo {
    Bytes {
        bytes: Vec<u8>,
        /// Whether nothing gets through after them.
        last: bool,
    },
    /// The sender has closed its half.
    End,
    /// The sender is gone.
    Reset,
}

impl Network {
    /// Returns the way of a connection from the process `origin`, if that is known.
    fn path(&self, origin: Option<u32>) -> Path {
        let Some(own) = origin.and_then(|pid| self.from.get(&pid)) else {
            return self.all;
        };
        Path {
            delay: self.all.delay + own.delay,
            hold_requests: self.all.hold_requests || own.hold_requests,
            hold_replies: self.all.hold_replies || own.hold_replies,
            refuse: self.all.refuse || own.refuse,
            cuts: self.all.cuts + own.cuts,
        }
    }

    fn holds(&self, direction: Direction, origin: Option<u32>) -> bool {
        let path = self.path(origin);
        let holds = match direction {
            Direction::Requests => path.hold_requests,
            Direction::Replies => path.hold_replies,
        };
        holds || self.is_over.load(Ordering::Relaxed)
    }
}

impl Path {
    fn strike(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Delay(delay) => self.delay = delay,
            Trouble::BlackHole => (self.hold_requests, self.hold_replies) = (true, true),
            Trouble::BlackHoleReplies => (self.hold_requests, self.hold_replies) = (false, true),
            Trouble::Cut => {
                self.refuse = true;
                self.cuts += 1;
            }
        }
    }

    fn heal(&mut self) {
        *self = Self {
            cuts: self.cuts,
            ..Self::default()
        };
    }
}

impl Proxy {
    /// Opens a proxy before the server at `server`, on a free loopback port. The server need not be there yet.
    ///
    /// # Errors
    ///
    /// There is no port or no thread to be had.
    pub fn before(server: SocketAddr) -> io::Result<Self> {
        Self::start(server, false)
    }

    /// Opens a proxy as [`before`](Self::before) does, which also looks up the process that each connection comes
    /// from, so that there can be [`trouble`](Self::trouble) for some of them. On Linux only, where `/proc` shows it;
    /// elsewhere no process is known.
    ///
    /// # Errors
    ///
    /// There is no port or no thread to be had.
    pub fn telling_apart(server: SocketAddr) -> io::Result<Self> {
        Self::start(server, true)
    }

    fn start(server: SocketAddr, tells_apart: bool) -> io::Result<Self> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let network = watch::Sender::new(Network::default());
        let stop = watch::Sender::new(false);

        let (state, mut stopped) = (network.subscribe(), stop.subscribe());
        let flows = Flows::default();
        let open = flows.clone();
        let thread = thread::Builder::new()
            .name("watchlock-proxy".to_owned())
            .spawn(move || {
                // Leaving `block_on` drops the runtime, and with it every connection.
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, server, state, open, tells_apart) => {}
                        _ = stopped.wait_for(|stop| *stop) => {}
                    }
                });
            })?;
        Ok(Self {
            addr,
            network,
            flows,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns the address on which the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a connection string for the server through the proxy, and for no other: without `directConnection` a
    /// driver would ask a replica set for its members, and bypass the proxy from then on.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.addr)
    }

    /// Lets nothing through in either direction, as if the cable had been pulled: open connections stay open and
    /// silent, new ones are accepted and stay silent too. Bytes sent meanwhile, and closings of connections, arrive
    /// after [`heal`](Self::heal).
    pub fn black_hole(&self) {
        self.network
            .send_modify(|network| network.all.strike(Trouble::BlackHole));
    }

    /// Lets requests through but no replies: the server does what it is asked, and the client does not hear of it
    /// until [`heal`](Self::heal).
    pub fn black_hole_replies(&self) {
        let order = |network: &mut Network| network.all.strike(Trouble::BlackHoleReplies);
        self.network.send_modify(order);
    }

    /// Closes all connections, and every new one as soon as it has been made, until [`heal`](Self::heal). With an
    /// immediate `heal` only the connections of this moment are lost.
    pub fn cut(&self) {
        self.network.send_modify(|network| network.all.strike(Trouble::Cut));
    }

    /// Restores a network without faults or delay. Held-back bytes are delivered; connections that were
    /// [lost](Self::lose) are closed, and the next one is not [lost](Self::lose_next).
    pub fn heal(&self) {
        self.flows.lose_no_next();
        self.flows.close_lost(|_| true);
        self.network.send_modify(|network| {
            network.all.heal();
            network.last = None;
            network.is_over.store(false, Ordering::Relaxed);
            network.from.values_mut().for_each(Path::heal);
        });
    }

    /// Makes trouble for the present and future connections of one process, until [`heal`](Self::heal) or
    /// [`heal_for`](Self::heal_for). Needs a proxy that is [`telling_apart`](Self::telling_apart).
    pub fn trouble(&self, pid: u32, trouble: Trouble) {
        self.network.send_modify(|network| {
            network.from.entry(pid).or_default().strike(trouble);
        });
    }

    /// Loses the open connections that `choose` picks, and returns their number. From now on nothing gets through them
    /// in either direction, bytes on the way included, and neither end learns of it, as behind a firewall that has
    /// forgotten them. All others, and those to come, go on. A lost connection stays lost until it is
    /// [closed](Self::close_lost), with [`heal`](Self::heal) or [`cut`](Self::cut) at the latest.
    ///
    /// ```no_run
    /// # fn example(proxy: watchlock_testkit::Proxy) {
    /// let lost = proxy.lose(|flow| flow.has_carried("findAndModify"));
    /// # }
    /// ```
    pub fn lose(&self, choose: impl FnMut(&Flow) -> bool) -> usize {
        self.flows.lose(choose)
    }

    /// [Loses](Self::lose) the next connection over which this command is sent, so that it is not answered. The server
    /// may get it.
    pub fn lose_next(&self, command: &str) {
        self.flows.lose_next(command);
    }

    /// Whether nobody has sent the command of [`lose_next`](Self::lose_next) yet.
    #[must_use]
    pub fn is_losing(&self) -> bool {
        self.flows.is_losing()
    }

    /// Becomes a [`black_hole`](Self::black_hole) as soon as this command has been sent to the server: it is the last
    /// that the server gets, and nobody hears of its reply, until [`heal`](Self::heal).
    pub fn black_hole_after(&self, command: &str) {
        self.network
            .send_modify(|network| network.last = Some(command.to_owned()));
    }

    /// Closes those [lost](Self::lose) connections that `choose` picks, so that both ends learn of it at last.
    pub fn close_lost(&self, choose: impl FnMut(&Flow) -> bool) {
        self.flows.close_lost(choose);
    }

    /// Ends the trouble of one process.
    pub fn heal_for(&self, pid: u32) {
        self.network.send_modify(|network| {
            if let Some(path) = network.from.get_mut(&pid) {
                path.heal();
            }
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(
    listener: StdListener,
    server: SocketAddr,
    network: watch::Receiver<Network>,
    flows: Flows,
    tells_apart: bool,
) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((client, peer)) => {
                let (network, flows) = (network.clone(), flows.clone());
                tokio::spawn(async move {
                    // Reading `/proc` takes milliseconds, for which the others must not wait.
                    let origin = if tells_apart {
                        let asked = tokio::task::spawn_blocking(move || origin::of_port(peer.port()));
                        asked.await.ok().flatten()
                    } else {
                        None
                    };
                    let now = network.borrow().path(origin);
                    if !now.refuse {
                        serve(client, server, network, flows.open(origin), now.cuts).await;
                    }
                });
            }
            // Most likely out of file descriptors: others will have been closed in a moment.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Serves one connection until both ends have closed it, one is gone, or it is cut.
async fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    mut network: watch::Receiver<Network>,
    open: OpenFlow,
    cuts: u64,
) {
    let (origin, mut condition) = (open.flow.origin(), open.flow.watch());
    let mut on_the_way = network.clone();
    let pass = async {
        // The handshake of TCP does not get through a black hole either.
        on_the_way
            .wait_for(|network| !network.holds(Direction::Requests, origin))
            .await
            .map_err(io::Error::other)?;
        let mut server = TcpStream::connect(server).await?;
        // Small messages must not wait for each other here: the delays are ours to choose.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let forward = async {
            tokio::try_join!(
                forward(from_client, to_server, Direction::Requests, &open, on_the_way.clone()),
                forward(from_server, to_client, Direction::Replies, &open, on_the_way),
            )
        };
        let lost = async {
            condition
                .wait_for(|condition| *condition != Condition::Alive)
                .await
                .is_ok()
        };
        tokio::select! {
            biased;
            _ = lost => {}
            passed = forward => drop(passed?),
        }
        if *condition.borrow() != Condition::Alive {
            swallow(&mut client, &mut server, condition).await;
        }
        io::Result::Ok(())
    };
    tokio::select! {
        // A connection that fails just goes; both sockets are dropped here.
        _ = pass => {}
        _ = network.wait_for(|network| network.path(origin).cuts != cuts) => {}
    }
}

/// Takes everything that comes and keeps both sockets open, until the connection is closed here. A closing by one end
/// is not passed on.
async fn swallow(client: &mut TcpStream, server: &mut TcpStream, mut condition: watch::Receiver<Condition>) {
    let drained = async {
        tokio::join!(drain(client), drain(server));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = drained => {}
        _ = condition.wait_for(|condition| *condition == Condition::Closed) => {}
    }
}

async fn drain(stream: &mut TcpStream) {
    let mut buffer = vec![0; CHUNK];
    while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
}

/// Carries bytes one way until the sender closes its half, which is passed on as well.
async fn forward(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    open: &OpenFlow,
    network: watch::Receiver<Network>,
) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::channel(IN_FLIGHT);
    let (origin, mut state) = (open.flow.origin(), network.clone());

    let read = async {
        let mut buffer = vec![0; CHUNK];
        let mut commands = Reader::default();
        loop {
            let cargo = match from.read(&mut buffer).await {
                Ok(0) => Cargo::End,
                Ok(length) => {
                    let (bytes, mut last) = (buffer[..length].to_vec(), false);
                    if let Direction::Requests = direction {
                        commands.read(&bytes, |name| {
                            last |= network.borrow().last.as_ref() == Some(&name);
                            open.note(name);
                        });
                    }
                    Cargo::Bytes { bytes, last }
                }
                Err(_) => Cargo::Reset,
            };
            let last = !matches!(cargo, Cargo::Bytes { .. });
            let due = Instant::now() + network.borrow().path(origin).delay;
            if sender.send((due, cargo)).await.is_err() || last {
                // The sender is not dropped before the function ends, but nothing is received after the last cargo.
                return io::Result::Ok(());
            }
        }
    };
    let write = async {
        while let Some((due, cargo)) = receiver.recv().await {
            sleep_until(due).await;
            state
                .wait_for(|network| !network.holds(direction, origin))
                .await
                .map_err(io::Error::other)?;
            match cargo {
                Cargo::Bytes { bytes, last } => {
                    to.write_all(&bytes).await?;
                    // One that was held back goes on after `heal`, and ends nothing.
                    let network = state.borrow();
                    if last && network.last.is_some() {
                        network.is_over.store(true, Ordering::Relaxed);
                    }
                }
                Cargo::End => {
                    to.shutdown().await?;
                    break;
                }
                Cargo::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
        Ok(())
    };
    tokio::try_join!(read, write)?;
    Ok(())
}
