//! The question whether a host speaks TLS, whatever it would make of the certificates.

use std::time::Duration;

use mongodb::options::ServerAddress;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// The types of the records with which a TLS server answers: a part of the handshake, and an alert. The major version
/// follows.
const ANSWERS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

/// A `ClientHello` of TLS 1.2, which later versions answer too.
const CLIENT_HELLO: &[&[u8]] = &[
    // A record with a handshake of 99 bytes, which is a ClientHello of 95 bytes.
    &[22, 3, 1, 0, 99, 1, 0, 0, 95, 3, 3],
    // Random bytes, as there will be nothing to protect; no session.
    &[119; 32],
    &[0],
    // ECDHE and RSA with AES, and no compression.
    &[
        0, 12, 0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, 0, 0x9c, 0, 0x2f, 1, 0,
    ],
    // The extensions: curves, forms of their points, signatures.
    &[0, 42],
    &[0, 10, 0, 8, 0, 6, 0, 29, 0, 23, 0, 24],
    &[0, 11, 0, 2, 1, 0],
    &[
        0, 13, 0, 20, 0, 18, 4, 3, 5, 3, 6, 3, 4, 1, 5, 1, 6, 1, 8, 4, 8, 5, 8, 6,
    ],
];

/// Returns whether a host answers the first message of a TLS handshake as TLS does. A whole handshake would not say it: a
/// server that requires a certificate of the client ends it, as one without TLS does.
pub(super) async fn is_spoken_by(host: &ServerAddress, within: Duration) -> bool {
    let ServerAddress::Tcp { host, port } = host else {
        return false;
    };
    let asked = async {
        let mut stream = TcpStream::connect((&host[..], port.unwrap_or(27017))).await?;
        stream.write_all(&CLIENT_HELLO.concat()).await?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    matches!(timeout(within, asked).await, Ok(Ok(answer)) if ANSWERS.contains(&answer))
}
