//! The reason why there is no server to work with, found by asking every host of the connection string by itself.
//!
//! The driver says only that it found no primary. So each host is asked who it is, without a replica set and without a
//! user; where that fails, it is seen whether the host speaks TLS, to tell a wrong setting of TLS from everything else.

use std::time::Duration;

use futures::future::join_all;
use mongodb::{
    bson::{Bson, Document},
    error::{Error, ErrorKind},
    options::{ClientOptions, ServerAddress, Tls},
};
use tokio::{net::TcpStream, time::timeout};

use super::{Check, Status, tls, topology};
use crate::{
    connection::{Connection, hello},
    exit::Failure,
    text::plain,
};

/// Limits the hosts that are asked: they are all of one set, and more lines would say no more.
const HOSTS_MOST: usize = 7;

/// Maximum time for one host to say who it is. All of it passes where a host does not, as the driver tries again.
const ANSWERED: Duration = Duration::from_secs(3);

/// Maximum time for a host to accept a connection.
const ACCEPTED: Duration = Duration::from_secs(2);

/// Maximum number of characters that are shown of a reason in the words of others.
const REASON_MOST: usize = 200;

/// A finding about a host, and the next step.
type Trouble = (String, String);

/// Returns why there is no server to work with.
pub(super) async fn unusable(connection: &Connection, failure: &Failure) -> Vec<Check> {
    let Ok(options) = connection.options().await else {
        let advice = "correct the host in the connection string (mongodb+srv:// takes the name of a whole cluster), or the name \
                      service of this machine";
        return vec![problem((failure.message().to_owned(), advice.to_owned()))];
    };
    if !failure.is_unavailable() {
        return vec![problem(not_let_in(&options, failure))];
    }
    let hosts = &options.hosts[..options.hosts.len().min(HOSTS_MOST)];
    let seen = join_all(hosts.iter().map(|host| look_at(&options, host.clone()))).await;
    let answers: Vec<&Document> = seen.iter().filter_map(|seen| seen.as_ref().ok()).collect();
    if answers.is_empty() {
        return seen.into_iter().filter_map(Result::err).map(problem).collect();
    }
    let asked = options.repl_set_name.as_deref();
    let is_direct = options.direct_connection == Some(true);
    let unfit = answers
        .iter()
        .find_map(|hello| topology::unfit(hello, asked, is_direct));
    let found = match unfit {
        Some(unfit) => Some(unfit),
        None => members(&options, &answers).await,
    };
    vec![problem(found.unwrap_or_else(|| by_the_driver(failure)))]
}

fn problem((found, advice): Trouble) -> Check {
    Check::new("server", Status::Problem, found).advice(advice)
}

fn by_the_driver(failure: &Failure) -> Trouble {
    if failure.message().contains("Server selection timeout") {
        let found = "the servers answer one by one, and yet no primary was found in time";
        let advice = "try again: there may have been an election; serverSelectionTimeoutMS in the connection string sets the \
                      time, and a slow network needs more of it";
        return (found.to_owned(), advice.to_owned());
    }
    let advice = "the server says who it is, so see whether it hangs, stops or changes its primary (its log, its disk, \
                  rs.status()), and check the connection string";
    (failure.message().to_owned(), advice.to_owned())
}

fn not_let_in(options: &ClientOptions, failure: &Failure) -> Trouble {
    let credential = options.credential.as_ref();
    let user = credential.and_then(|credential| credential.username.as_deref());
    let source = credential.and_then(|credential| credential.source.as_deref());
    let source = source.or(options.default_database.as_deref()).unwrap_or("admin");
    let advice = format!(
        "check user{} and password (characters like : / ? # @ % must be percent-encoded), and the database in which the \
         user was created: it is taken to be `{}`, and authSource names another",
        user.map(|user| format!(" `{}`", plain(user))).unwrap_or_default(),
        plain(source)
    );
    (failure.message().to_owned(), advice)
}

/// Asks one host who it is.
async fn look_at(options: &ClientOptions, host: ServerAddress) -> Result<Document, Trouble> {
    let failed = match hello(options, host.clone(), options.tls.clone(), ANSWERED).await {
        Ok(hello) => return Ok(hello),
        Err(error) => error,
    };
    let place = plain(&host.to_string());
    let why = of_the_server(&failed);
    let why = why.as_deref();
    // A host that is not reached at all is the same with and without.
    let is_closed = why.is_some_and(|why| {
        ["end of file", "eof", "close", "reset", "corrupt"]
            .iter()
            .any(|word| why.contains(word))
    });
    if is_closed && matches!(options.tls, Some(Tls::Enabled(_))) {
        if hello(options, host.clone(), Some(Tls::Disabled), ANSWERED)
            .await
            .is_ok()
        {
            let advice =
                "remove tls=true (or ssl=true) from the connection string, or turn TLS on at the server (--tlsMode)";
            let found = format!("{place} does not speak TLS, and the connection string asks for it");
            return Err((found, advice.to_owned()));
        }
    } else if is_closed && tls::is_spoken_by(&host, ANSWERED).await {
        let advice = "add tls=true to the connection string, and tlsCAFile=FILE with the certificate of its authority; if \
                      the server asks for a certificate of the client, tlsCertificateKeyFile=FILE too";
        let found = format!("{place} requires TLS, and the connection string does not ask for it");
        return Err((found, advice.to_owned()));
    }
    Err(match why {
        None => silence(&place, &host).await,
        Some(why) if why.contains("timed out") => silence(&place, &host).await,
        Some(why) => trouble(&place, why, is_closed, options),
    })
}

/// Returns the reason why the one server of a client can't be used, in the words of the driver, of the system or of the TLS
/// library; `None` if nothing came from it.
fn of_the_server(error: &Error) -> Option<String> {
    let text = match &*error.kind {
        // The driver describes all servers that it knows: here it is one.
        ErrorKind::ServerSelection { message, .. } => {
            message.split_once("Error: Kind: ")?.1.split(", labels: ").next()?
        }
        _ => &error.kind.to_string(),
    };
    let text = text.split('{').next().unwrap_or_default();
    let text = text.strip_prefix("I/O error: ").unwrap_or(text);
    Some(text.chars().take(REASON_MOST).collect())
}

/// Describes a host from which nothing comes.
async fn silence(place: &str, host: &ServerAddress) -> Trouble {
    let accepted = match host {
        ServerAddress::Tcp { host, port } => {
            let connecting = TcpStream::connect((&host[..], port.unwrap_or(27017)));
            matches!(timeout(ACCEPTED, connecting).await, Ok(Ok(_)))
        }
        _ => true,
    };
    if accepted {
        let advice = "see whether the server hangs (its log, its disk, a stopped process), and whether another program has \
                      the port";
        return (
            format!("{place} accepts connections and never answers"),
            advice.to_owned(),
        );
    }
    let advice = "check the address, and whether a firewall or an access list drops connections from this machine";
    (format!("{place} can't be reached: no answer"), advice.to_owned())
}

/// Describes a host whose connection failed.
fn trouble(place: &str, why: &str, is_closed: bool, options: &ClientOptions) -> Trouble {
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    let with_tls = matches!(options.tls, Some(Tls::Enabled(_)));
    let (found, advice) = if says(&["Connection refused"]) {
        (
            format!("{place} refuses connections: nothing listens there"),
            "start the server, or correct the host and the port in the connection string",
        )
    } else if says(&["lookup address", "Name or service not known", "nodename nor servname"]) {
        (
            format!("{place} has no address: the name can't be looked up"),
            "correct the host in the connection string, or the name service of this machine",
        )
    } else if says(&[
        "not valid for name",
        "NotValidForName",
        "ostname mismatch",
        "IP address mismatch",
    ]) {
        (
            format!("{place} has a certificate for other host names: {}", plain(why)),
            "name the server in the connection string as its certificate does, or give it a certificate for this name",
        )
    } else if says(&[
        "UnknownIssuer",
        "issuer certificate",
        "self-signed",
        "self signed",
        "CaUsedAsEndEntity",
    ]) {
        (
            format!("{place} has a certificate of an unknown authority"),
            "name the file with the certificate of its authority: tlsCAFile=FILE in the connection string",
        )
    } else if says(&["xpired", "not yet valid", "NotValidYet"]) {
        (
            format!("{place} has a certificate that has expired, or is not valid yet"),
            "renew the certificate of the server, or set the clock of this machine",
        )
    } else if says(&["invalid reply", "wire protocol", "corrupt message"]) {
        (
            format!("{place} answers, and not as a MongoDB server does"),
            "correct the host and the port in the connection string: another program listens there",
        )
    } else if says(&["certificate"]) {
        (
            format!("the certificate of {place} is not accepted: {}", plain(why)),
            "check the certificate of the server, and tlsCAFile in the connection string",
        )
    } else if with_tls && (is_closed || says(&["alert"])) {
        (
            format!("{place} breaks off the TLS handshake"),
            "if the server asks for a certificate of the client, name its file: tlsCertificateKeyFile=FILE in the \
             connection string; else see its log",
        )
    } else if is_closed {
        (
            format!("{place} closes every connection"),
            "see whether the port belongs to a MongoDB server, whether that has room for more connections \
             (maxIncomingConnections), and its log",
        )
    } else {
        (
            format!("{place} can't be reached: {}", plain(why)),
            "check the address in the connection string, and the network between this machine and the server",
        )
    };
    (found, advice.to_owned())
}

/// Looks at the other members that a set names: the driver goes by these names, not by those in the connection string.
async fn members(options: &ClientOptions, answers: &[&Document]) -> Option<Trouble> {
    let hello = answers.iter().find(|hello| hello.contains_key("setName"))?;
    let set = plain(hello.get_str("setName").unwrap_or_default());
    let named: Vec<&str> = ["hosts", "passives", "arbiters"]
        .iter()
        .flat_map(|field| hello.get_array(field).into_iter().flatten())
        .filter_map(Bson::as_str)
        .collect();
    let primary = answers.iter().find_map(|hello| hello.get_str("primary").ok());
    let wanted: Vec<&str> = match primary {
        Some(primary) => vec![primary],
        None => named.iter().copied().take(HOSTS_MOST).collect(),
    };
    let looked = join_all(wanted.iter().map(async |name| {
        let host = ServerAddress::parse(name).ok()?;
        look_at(options, host).await.err()
    }));
    let silent: Vec<String> = looked.await.into_iter().flatten().map(|(found, _)| found).collect();
    let reasons = silent.join("; ");
    if let Some(primary) = primary {
        let found = format!(
            "the replica set `{set}` names its primary {}, which can't be used from here: {reasons}",
            plain(primary)
        );
        let advice = "clients go by the names in rs.conf(): they must be known, and reachable, on this machine too";
        return (!silent.is_empty()).then(|| (found, advice.to_owned()));
    }
    let found = format!(
        "the replica set `{set}` has no primary: {} of the {} members that it names can't be used{}",
        silent.len(),
        named.len(),
        if silent.is_empty() {
            String::new()
        } else {
            format!(": {reasons}")
        }
    );
    let advice = "a primary takes a majority of the members: start those that are down; rs.status() at one that answers \
                  says more";
    Some((found, advice.to_owned()))
}
