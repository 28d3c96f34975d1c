//! What test/e2e/sdk*.test.ts do with the npm SDK, done with the Rust SDK. One line is printed for each step.

use microsandbox::sandbox::RlimitResource;
use microsandbox::snapshot::Snapshot;
use microsandbox::{ExecEvent, ExecHandle, MicrosandboxError, Sandbox, Volume};
use std::time::Duration;

const IMAGE: &str = "localhost/demo";
type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn commands(walk: &Sandbox) -> Outcome {
    let output = walk.exec("sh", ["-c", "echo out; echo err >&2; exit 3"]).await?;
    assert_eq!((output.stdout()?.as_str(), output.stderr()?.as_str()), ("out\n", "err\n"));
    assert_eq!(output.status().code, 3);
    let output = walk.shell("head -c 3145728 /dev/urandom > /tmp/r; sha256sum < /tmp/r >&2; cat /tmp/r").await?;
    assert_eq!(output.stdout_bytes().len(), 3_145_728);
    // A server of generation 7 takes standard input in one frame of at most 4 MiB.
    let again = walk.exec_with("sha256sum", |e| e.stdin_bytes(output.stdout_bytes().to_vec())).await?;
    assert_eq!(again.stdout()?, output.stderr()?);
    let output = walk
        .exec_with("sh", |e| {
            e.args(["-c", "echo $A; pwd; id -u; id -g; ulimit -n"])
                .env("A", "b c")
                .cwd("/var")
                .user("1234:4321")
                .rlimit(RlimitResource::Nofile, 77)
        })
        .await?;
    assert_eq!(output.stdout()?, "b c\n/var\n1234\n4321\n77\n");
    assert_eq!(walk.exec("wc", ["-c"]).await?.stdout()?.trim(), "0");
    Ok(())
}

async fn streams(walk: &Sandbox) -> Outcome {
    let mut handle = walk.exec_stream_with("cat", |e| e.stdin_pipe()).await?;
    let stdin = handle.take_stdin().expect("no standard input");
    for text in ["first", "second"] {
        stdin.write(text).await?;
        assert_eq!(next_output(&mut handle).await, text.as_bytes());
    }
    stdin.close().await?;
    assert_eq!(handle.wait().await?.code, 0);
    let mut handle =
        walk.shell_stream("trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done").await?;
    assert_eq!(next_output(&mut handle).await, b"ready\n");
    handle.signal(15).await?;
    let output = handle.collect().await?;
    assert_eq!((output.stdout()?.as_str(), output.status().code), ("caught\n", 7));
    let late = walk.exec_with("sleep", |e| e.arg("61").timeout(Duration::from_millis(300))).await;
    assert!(matches!(late, Err(MicrosandboxError::ExecTimeout(_))), "{late:?}");
    assert_eq!(walk.shell("pgrep -cf '^sleep 61'").await?.stdout()?, "0\n");
    Ok(())
}

async fn terminal(walk: &Sandbox) -> Outcome {
    let script = "test -t 0 && echo tty; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut handle = walk.exec_stream_with("sh", |e| e.args(["-c", script]).tty(true)).await?;
    output_until(&mut handle, "ready").await;
    handle.resize(33, 121).await?;
    output_until(&mut handle, "33 121").await;
    assert_eq!(handle.wait().await?.code, 5);
    Ok(())
}

async fn failures(walk: &Sandbox) -> Outcome {
    let missing = walk.exec("no-such-program", Vec::<String>::new()).await;
    assert!(missing.is_err_and(|error| error.to_string().contains("no-such-program")));
    let absent = Sandbox::get("never-made").await;
    assert!(matches!(absent, Err(MicrosandboxError::SandboxNotFound(_))));
    let taken = Sandbox::builder("rust-walk").image(IMAGE).create().await;
    assert!(matches!(taken, Err(MicrosandboxError::SandboxAlreadyExists(_))));
    let image = Sandbox::builder("rust-no").image("localhost/not-made").create().await;
    assert!(image.is_err_and(|error| error.to_string().contains("localhost/not-made")));
    Sandbox::remove("rust-no").await?;
    Ok(())
}

async fn files(walk: &Sandbox) -> Outcome {
    let fs = walk.fs();
    let data: Vec<u8> = (0..5_000_000).map(|at| (at % 251) as u8).collect();
    fs.mkdir("/root/d").await?;
    fs.write("/root/d/a", &data).await?;
    assert_eq!(fs.read("/root/d/a").await?, data);
    let sink = fs.write_stream("/root/d/b").await?;
    for part in data.chunks(1_000_000) {
        sink.write(part).await?;
    }
    sink.close().await?;
    assert_eq!(fs.read_stream("/root/d/b").await?.collect().await?, data);
    fs.symlink("/root/d/a", "/root/d/link").await?;
    assert_eq!(fs.read_link("/root/d/link").await?, "/root/d/a");
    assert_eq!(fs.list("/root/d").await?.len(), 3);
    fs.copy("/root/d/a", "/root/d/c").await?;
    fs.rename("/root/d/c", "/root/d/e").await?;
    assert_eq!(fs.stat("/root/d/e").await?.size, data.len() as u64);
    fs.remove("/root/d/e").await?;
    assert!(!fs.exists("/root/d/e").await?);
    let owners = walk.shell("stat -c %U:%G /root/d /root/d/a /root/d/link").await?;
    assert_eq!(owners.stdout()?, "root:root\n".repeat(3));
    fs.remove_dir("/root/d").await?;
    assert!(fs.read("/root/d/a").await.is_err());
    Ok(())
}

async fn volumes(_walk: &Sandbox) -> Outcome {
    let volume = Volume::builder("rust-volume").create().await?;
    let taken = Volume::builder("rust-volume").create().await;
    assert!(matches!(taken, Err(MicrosandboxError::VolumeAlreadyExists(_))), "{:?}", taken.err());
    let absent = Volume::get("no-such-volume").await;
    assert!(matches!(absent, Err(MicrosandboxError::VolumeNotFound(_))));
    volume.fs().write("given", "from outside").await?;
    let sandbox =
        Sandbox::builder("rust-mount").image(IMAGE).volume("/data", |mount| mount.named("rust-volume")).create().await?;
    let output = sandbox.shell("cat /data/given; echo inside > /data/made").await?;
    assert_eq!(output.stdout()?, "from outside");
    assert_eq!(volume.fs().read_to_string("made").await?, "inside\n");
    sandbox.destroy().await?;
    Volume::remove("rust-volume").await?;
    Ok(())
}

async fn lifecycle(_walk: &Sandbox) -> Outcome {
    let sandbox = Sandbox::builder("rust-kept").image(IMAGE).create().await?;
    sandbox.shell("echo kept > /root/file").await?;
    sandbox.stop().await?;
    let again = Sandbox::start("rust-kept").await?;
    assert_eq!(again.id().to_string(), sandbox.id().to_string());
    let restarted = again.restart().await?;
    assert_eq!(restarted.shell("cat /root/file").await?.stdout()?, "kept\n");
    restarted.destroy().await?;
    let brief = Sandbox::builder("rust-brief").image(IMAGE).ephemeral(true).create().await?;
    brief.stop().await?;
    let ends = Sandbox::builder("rust-ends").image(IMAGE).ephemeral(true).cmd(["sh", "-c", "sleep 1"]).create().await?;
    ends.wait_until_stopped().await?;
    Ok(())
}

async fn settings(_walk: &Sandbox) -> Outcome {
    let sandbox = Sandbox::builder("rust-set")
        .image(IMAGE)
        .slug("a-slug-of-the-rust-walk")
        .env("A", "from sandbox")
        .user("1000:1000")
        .workdir("/var/tmp")
        .label("walk", "rust")
        .script("greet", "#!/bin/sh\necho \"hello $1\"\n")
        .volume("/scratch", |mount| mount.tmpfs().size(16u32))
        .create()
        .await?;
    let connected = Sandbox::get("rust-set").await?.connect().await?;
    let output = connected.shell("echo $A; id -u; greet you").await?;
    assert_eq!(output.stdout()?, "from sandbox\n1000\nhello you\n");
    assert_eq!(sandbox.exec("pwd", Vec::<String>::new()).await?.stdout()?, "/var/tmp\n");
    let page = Sandbox::list_with(|list| list.limit(1).label("walk", "rust")).await?;
    assert_eq!(page.sandboxes.iter().map(|one| one.name()).collect::<Vec<_>>(), ["rust-set"]);
    assert!(page.next_cursor.is_none());
    sandbox.destroy().await?;
    Ok(())
}

async fn snapshots(walk: &Sandbox) -> Outcome {
    let of_walk = |name: &str| Snapshot::builder(name).from_sandbox("rust-walk");
    walk.shell("echo kept > /root/kept").await?;
    let made = of_walk("rust-shot").label("team", "ml").create().await?;
    assert_eq!(made.labels().get("team").map(String::as_str), Some("ml"));
    let listed = Snapshot::list().await?;
    assert_eq!(listed.iter().map(|one| one.name()).collect::<Vec<_>>(), [Some("rust-shot")]);
    assert_eq!(Snapshot::get("rust-shot").await?.digest(), made.digest());
    assert_eq!(Snapshot::open("rust-shot").await?.digest(), made.digest());
    let taken = of_walk("rust-shot").create().await;
    assert!(matches!(taken, Err(MicrosandboxError::SnapshotAlreadyExists(_))), "{:?}", taken.err());
    walk.shell("echo later > /root/kept").await?;
    assert_ne!(of_walk("rust-shot").force().create().await?.digest(), made.digest());
    let copy = Sandbox::restore("rust-shot").name("rust-copy").memory(256u32).restore().await?;
    assert_eq!(copy.shell("cat /root/kept").await?.stdout()?, "later\n");
    Snapshot::remove("rust-shot", false).await?;
    let absent = Snapshot::get("rust-shot").await;
    assert!(matches!(absent, Err(MicrosandboxError::SnapshotNotFound(_))), "{:?}", absent.err());
    let nobody = Snapshot::builder("rust-none").from_sandbox("nobody").create().await;
    assert!(matches!(nobody, Err(MicrosandboxError::SandboxNotFound(_))), "{:?}", nobody.err());
    let unnamed = of_walk("~x").create().await;
    assert!(matches!(unnamed, Err(MicrosandboxError::InvalidConfig(_))), "{:?}", unnamed.err());
    assert_eq!(copy.shell("cat /root/kept").await?.stdout()?, "later\n");
    copy.destroy().await?;
    Ok(())
}

async fn next_output(handle: &mut ExecHandle) -> Vec<u8> {
    loop {
        match handle.recv().await {
            Some(ExecEvent::Stdout(bytes)) => return bytes.to_vec(),
            Some(ExecEvent::Exited { code }) => panic!("the command ended with {code}"),
            Some(_) => {}
            None => panic!("the stream ended"),
        }
    }
}

async fn output_until(handle: &mut ExecHandle, wanted: &str) {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        seen += &String::from_utf8_lossy(&next_output(handle).await);
    }
}

macro_rules! walk {
    ($sandbox:expr, $($step:ident),*) => {
        $($step($sandbox).await.map_err(|error| format!("{}: {error}", stringify!($step)))?;
        println!("ok - {}", stringify!($step));)*
    };
}

#[tokio::main]
async fn main() -> Outcome {
    let sandbox = Sandbox::builder("rust-walk").image(IMAGE).create().await?;
    walk!(&sandbox, commands, streams, terminal, failures, files, volumes, lifecycle, settings, snapshots);
    sandbox.destroy().await?;
    Ok(())
}
