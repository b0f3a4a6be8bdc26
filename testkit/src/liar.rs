//! A server that does not do what it is asked, or does not say what it did: a proxy that changes commands and answers.

use std::{
    fmt,
    io::{self, Cursor},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use mongodb::bson::{Bson, Document};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The code of an `OP_MSG`, in which drivers send their commands.
const OP_MSG: i32 = 2013;

/// Bytes of a message's header.
const HEADER: usize = 16;

/// Maximum length of a message in MongoDB.
const MESSAGE: usize = 48_000_000;

/// What becomes of a command.
#[derive(Debug)]
pub enum Told {
    /// The server gets it, as it is by now.
    Server,
    /// The client gets this answer, and the server hears nothing of it.
    Client(Document),
    /// The server hears nothing of it, and the client waits in vain: its connection stays open and silent.
    Nobody,
}

/// A proxy before one server that changes the commands and answers of its clients. Dropping it closes everything.
pub struct Liar {
    addr: SocketAddr,
    accepting: JoinHandle<()>,
}

/// A change of an answer, by the command as it was sent.
type OfAnswer = dyn Fn(&Document, &mut Document) + Send + Sync;

/// What is changed.
struct Lie {
    command: Box<dyn Fn(&mut Document) -> Told + Send + Sync>,
    answer: Box<OfAnswer>,
}

impl Liar {
    /// Opens a proxy before the server at `server`. `command` changes each command; `answer` gets the command as it was
    /// sent, and changes the server's answer.
    ///
    /// # Errors
    ///
    /// There is no port to be had.
    pub async fn before(
        server: SocketAddr,
        command: impl Fn(&mut Document) -> Told + Send + Sync + 'static,
        answer: impl Fn(&Document, &mut Document) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let lie = Arc::new(Lie {
            command: Box::new(command),
            answer: Box::new(answer),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                // A connection that fails just goes.
                open.spawn(serve(client, server, lie.clone()));
            }
        });
        Ok(Self { addr, accepting })
    }

    /// Returns a connection string for the server through the proxy, and for no other.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.addr)
    }
}

impl fmt::Debug for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Liar").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Replaces each value in a document, and in all that is in it, for which `change` has another.
pub fn replace(document: &mut Document, change: &impl Fn(&Bson) -> Option<Bson>) {
    for (_, value) in document.iter_mut() {
        replace_in(value, change);
    }
}

fn replace_in(value: &mut Bson, change: &impl Fn(&Bson) -> Option<Bson>) {
    if let Some(changed) = change(value) {
        *value = changed;
        return;
    }
    match value {
        Bson::Document(document) => replace(document, change),
        Bson::Array(values) => values.iter_mut().for_each(|value| replace_in(value, change)),
        _ => {}
    }
}

/// Serves one connection. On each, the driver waits for one answer before it sends the next command.
async fn serve(mut client: TcpStream, server: SocketAddr, lie: Arc<Lie>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    loop {
        let asked = Message::read(&mut client).await?;
        let Some(mut command) = asked.document() else {
            // The first of a connection may be of an old form.
            server.write_all(&asked.0).await?;
            client.write_all(&Message::read(&mut server).await?.0).await?;
            continue;
        };
        let answered = match (lie.command)(&mut command) {
            Told::Client(answer) => Message::new(asked.id(), asked.id(), &answer)?,
            Told::Nobody => std::future::pending().await,
            Told::Server => {
                server.write_all(&Message::new(asked.id(), 0, &command)?.0).await?;
                let answered = Message::read(&mut server).await?;
                match answered.document() {
                    Some(mut answer) => {
                        (lie.answer)(&command, &mut answer);
                        Message::new(answered.id(), asked.id(), &answer)?
                    }
                    None => answered,
                }
            }
        };
        client.write_all(&answered.0).await?;
    }
}

/// A message of MongoDB's protocol, in bytes.
struct Message(Vec<u8>);

impl Message {
    async fn read(from: &mut TcpStream) -> io::Result<Self> {
        let length = usize::try_from(from.read_i32_le().await?).unwrap_or(0);
        if !(HEADER..=MESSAGE).contains(&length) {
            return Err(io::Error::other("no message of MongoDB"));
        }
        let mut bytes = vec![0; length];
        bytes[..4].copy_from_slice(&i32::try_from(length).map_err(io::Error::other)?.to_le_bytes());
        from.read_exact(&mut bytes[4..]).await?;
        Ok(Self(bytes))
    }

    /// Makes an `OP_MSG` with one document, without any flags.
    fn new(id: i32, answers: i32, document: &Document) -> io::Result<Self> {
        let mut bytes = vec![0; 4];
        for number in [id, answers, OP_MSG, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.push(0);
        document.to_writer(&mut bytes).map_err(io::Error::other)?;
        let length = i32::try_from(bytes.len()).map_err(io::Error::other)?;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        Ok(Self(bytes))
    }

    fn number(&self, at: usize) -> Option<i32> {
        let bytes = self.0.get(at..at + 4)?;
        Some(i32::from_le_bytes(bytes.try_into().ok()?))
    }

    fn id(&self) -> i32 {
        self.number(4).unwrap_or(0)
    }

    /// Returns the document of an `OP_MSG`, with its sequences as arrays.
    fn document(&self) -> Option<Document> {
        if self.number(12)? != OP_MSG {
            return None;
        }
        let has_checksum = self.number(HEADER)? & 1 != 0;
        let end = self.0.len() - if has_checksum { 4 } else { 0 };
        let mut rest = Cursor::new(self.0.get(HEADER + 4..end)?);
        let (mut document, mut sequences) = (None, Document::new());
        loop {
            let at = usize::try_from(rest.position()).ok()?;
            let Some(kind) = rest.get_ref().get(at) else { break };
            rest.set_position(rest.position() + 1);
            if *kind == 0 {
                document = Some(Document::from_reader(&mut rest).ok()?);
                continue;
            }
            let bytes = rest.get_ref().get(at + 1..at + 5)?;
            let size = usize::try_from(i32::from_le_bytes(bytes.try_into().ok()?)).ok()?;
            let section = rest.get_ref().get(at + 5..at + 1 + size)?;
            let name_end = section.iter().position(|byte| *byte == 0)?;
            let name = String::from_utf8(section[..name_end].to_vec()).ok()?;
            let mut within = Cursor::new(&section[name_end + 1..]);
            let mut documents = Vec::new();
            while usize::try_from(within.position()).ok()? < within.get_ref().len() {
                documents.push(Bson::Document(Document::from_reader(&mut within).ok()?));
            }
            sequences.insert(name, documents);
            rest.set_position(u64::try_from(at + 1 + size).ok()?);
        }
        let mut document = document?;
        document.extend(sequences);
        Some(document)
    }
}
