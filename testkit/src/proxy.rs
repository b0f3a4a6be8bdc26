//! A TCP proxy that stands in for a bad network.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

/// The most bytes that travel as one chunk.
const CHUNK: usize = 64 * 1024;

/// The most chunks on the way in one direction of one connection. Beyond that the sender is made to wait, as it would
/// be by a full TCP window.
const IN_FLIGHT: usize = 1024;

/// A TCP proxy on a loopback port of its own, before one server.
///
/// It passes everything on until told otherwise; what it is told holds for the connections there are and those to
/// come. Its work is done on a thread of its own, so it serves clients of any runtime, and may sit in a `static`.
/// Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    network: watch::Sender<Network>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// What the network is like at the moment.
#[derive(Clone, Copy, Debug, Default)]
struct Network {
    delay: Duration,
    hold_requests: bool,
    hold_replies: bool,
    refuse: bool,
    /// How often all connections have been cut: one that was accepted at a lower count has to go. A count, as a flag
    /// that is set and cleared in quick succession might be missed.
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

/// What is on the way in one direction.
enum Cargo {
    Bytes(Vec<u8>),
    /// The sender has closed its half.
    End,
    /// The sender is gone.
    Reset,
}

impl Network {
    fn holds(&self, direction: Direction) -> bool {
        match direction {
            Direction::Requests => self.hold_requests,
            Direction::Replies => self.hold_replies,
        }
    }
}

impl Proxy {
    /// Opens a proxy before the server at `server`, on a free loopback port. The server need not be there yet.
    ///
    /// # Errors
    ///
    /// There is no port or no thread to be had.
    pub fn before(server: SocketAddr) -> io::Result<Self> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let network = watch::Sender::new(Network::default());
        let stop = watch::Sender::new(false);

        let (state, mut stopped) = (network.subscribe(), stop.subscribe());
        let thread = thread::Builder::new()
            .name("watchlock-proxy".to_owned())
            .spawn(move || {
                // Leaving `block_on` drops the runtime, and with it every connection.
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, server, state) => {}
                        _ = stopped.wait_for(|stop| *stop) => {}
                    }
                });
            })?;
        Ok(Self {
            addr,
            network,
            stop,
            thread: Some(thread),
        })
    }

    /// Where the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A connection string for the server through the proxy, and for no other: without `directConnection` a driver
    /// would ask a replica set for its members, and go round the proxy from then on.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.addr)
    }

    /// Has every chunk of bytes arrive that much later, in each direction. The order is kept.
    pub fn set_delay(&self, delay: Duration) {
        self.network.send_modify(|network| network.delay = delay);
    }

    /// Lets nothing through in either direction, as if the cable had been pulled: open connections stay open and
    /// silent, new ones are accepted and stay silent too. What is sent meanwhile, the closing of a connection
    /// included, arrives after [`heal`](Self::heal).
    pub fn black_hole(&self) {
        self.network.send_modify(|network| {
            network.hold_requests = true;
            network.hold_replies = true;
        });
    }

    /// Lets requests through but no replies: the server does what it is asked, and the client does not hear of it
    /// until [`heal`](Self::heal).
    pub fn black_hole_replies(&self) {
        self.network.send_modify(|network| {
            network.hold_requests = false;
            network.hold_replies = true;
        });
    }

    /// Closes all connections, and every new one as soon as it has been made, until [`heal`](Self::heal). With an
    /// immediate `heal` only the connections of this moment are lost.
    pub fn cut(&self) {
        self.network.send_modify(|network| {
            network.refuse = true;
            network.cuts += 1;
        });
    }

    /// Back to a network without faults or delay. What was held back is delivered.
    pub fn heal(&self) {
        self.network.send_modify(|network| {
            *network = Network {
                cuts: network.cuts,
                ..Network::default()
            };
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

async fn accept(listener: StdListener, server: SocketAddr, network: watch::Receiver<Network>) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let now = *network.borrow();
                if !now.refuse {
                    tokio::spawn(serve(client, server, network.clone(), now.cuts));
                }
            }
            // Out of file descriptors, most likely: others will have been closed in a moment.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Serves one connection until both ends have closed it, one is gone, or it is cut.
async fn serve(client: TcpStream, server: SocketAddr, mut network: watch::Receiver<Network>, cuts: u64) {
    let mut on_the_way = network.clone();
    let pass = async {
        // The handshake of TCP does not get through a black hole either.
        on_the_way
            .wait_for(|network| !network.hold_requests)
            .await
            .map_err(io::Error::other)?;
        let server = TcpStream::connect(server).await?;
        // Small messages must not wait for each other here: the delays are ours to choose.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            forward(from_client, to_server, Direction::Requests, on_the_way.clone()),
            forward(from_server, to_client, Direction::Replies, on_the_way),
        )?;
        io::Result::Ok(())
    };
    tokio::select! {
        // A connection that fails just goes; both sockets are dropped here.
        _ = pass => {}
        _ = network.wait_for(|network| network.cuts != cuts) => {}
    }
}

/// Carries bytes one way until the sender closes its half, which is passed on as well.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    network: watch::Receiver<Network>,
) -> io::Result<()> {
    let (sender, mut receiver) = mpsc::channel(IN_FLIGHT);
    let mut state = network.clone();

    let read = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            let cargo = match from.read(&mut buffer).await {
                Ok(0) => Cargo::End,
                Ok(length) => Cargo::Bytes(buffer[..length].to_vec()),
                Err(_) => Cargo::Reset,
            };
            let last = !matches!(cargo, Cargo::Bytes(_));
            let due = Instant::now() + network.borrow().delay;
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
                .wait_for(|network| !network.holds(direction))
                .await
                .map_err(io::Error::other)?;
            match cargo {
                Cargo::Bytes(bytes) => to.write_all(&bytes).await?,
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
