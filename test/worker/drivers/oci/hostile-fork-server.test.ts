import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { makeLog } from '../../../../src/lib/log.ts'
import {
  makeLauncher,
  type ForkServerProcess,
  type Launcher,
} from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { waitUntil } from '../../../support/wait.ts'

/**
 * A fork server that a sandbox has replaced by a program of its own. It receives requests and does with the status socket `$status`
 * what the test says.
 */
const hostile = (act: string): string => String.raw`
use Socket; use POSIX ();
my ($recvmsg, $sendmsg) = (POSIX::uname())[4] eq 'aarch64' ? (212, 211) : (47, 46);
my $pid = fork;
if ($pid) { open my $file, '>', $ARGV[0]; print $file $pid; close $file; exit 0 }
sub say_status { my ($status, $text) = @_; my $to = sockaddr_un(''); syscall $sendmsg, $status, message($text, ''), 0x4000 }
sub message { my ($text, $control) = @_; our @kept = (@_, pack 'P Q', $text, length $text); $kept[2] = pack 'P Q', $kept[0], length $text;
    return our $message = pack 'Q L x4 P Q P Q L x4', 0, 0, $kept[2], 1, $kept[1], length $control, 0 }
while (1) {
    my ($request, $control) = ("\0" x 65536, "\0" x 32);
    substr($_, 0, 1) = "\1" for $request, $control;
    my $parts = pack 'P Q', $request, 65536;
    my $message = pack 'Q L x4 P Q P Q L x4', 0, 0, $parts, 1, $control, 32, 0;
    syscall($recvmsg, 0, $message, 0) > 0 or exit 0;
    my (undef, undef, undef, $status) = unpack 'x16 l4', $control;
    ${act}
}
`

let folder: string
let launcher: Launcher
let fifos: readonly [string, string, string]
before(() => {
  folder = mkdtempSync(join(tmpdir(), 'sandyard-hostile-'))
  launcher = makeLauncher(makeLog('silent'))
  fifos = [join(folder, '0'), join(folder, '1'), join(folder, '2')]
  // Regular files open without blocking, as the worker's FIFOs do.
  for (const path of fifos) execFileSync('touch', [path])
})
after(() => {
  launcher.close()
  rmSync(folder, { recursive: true })
})

async function startServer(act: string): Promise<{ readonly server: ForkServerProcess; readonly pid: number }> {
  const pidFile = join(folder, `pid-${String(Math.trunc(performance.now() * 1000))}`)
  const server = await launcher.startForkServer(['perl', '-e', hostile(act), pidFile], { pidFile })
  const left = await server.left
  assert.ok(left !== null)
  return { server, pid: left.pid }
}
/** The open descriptors of the launcher, which is the parent of a fork server. */
function launcherDescriptors(pid: number): number {
  const launcherPid = /^PPid:\s+(\d+)$/m.exec(readFileSync(`/proc/${String(pid)}/status`, 'utf8'))?.[1] ?? ''
  return readdirSync(`/proc/${launcherPid}/fd`).length
}

const request = Buffer.from('anything')

test('a server that names a process which is no child of the launcher starts nothing', async () => {
  const { server, pid } = await startServer(`if (!fork) { say_status($status, 'p'); sleep 5 } POSIX::close($status)`)
  await assert.rejects(server.run(request, fifos), /could not be started/)
  process.kill(pid, 'SIGKILL')
  await server.ended
})

test('a server that names itself starts nothing, and its own exit is reported as its own', async () => {
  const { server } = await startServer(`say_status($status, 'p'); exit 3`)
  await assert.rejects(server.run(request, fifos), /could not be started/)
  assert.deepEqual(await server.ended, { code: 3 })
})

test('a server that says nonsense, or nothing, starts nothing', async () => {
  for (const act of [`say_status($status, 'x' x 5000)`, `POSIX::close($status)`, `exit 0`]) {
    const { server } = await startServer(`${act}; POSIX::close($status)`)
    await assert.rejects(server.run(request, fifos), /started/)
  }
})

test('the launcher takes no descriptor from a server, and keeps none of a start that failed', async () => {
  const { server, pid } = await startServer(`
    our @rights = (pack 'Q l l l4', 32, 1, 1, 0, 1, 2, 0);
    our $part = 'z'; our $parts = pack 'P Q', $part, 1;
    our $with = pack 'Q L x4 P Q P Q L x4', 0, 0, $parts, 1, $rights[0], 32, 0;
    syscall $sendmsg, $status, $with, 0x4000; POSIX::close($status)`)
  const before = launcherDescriptors(pid)
  for (let count = 0; count < 20; count++) await assert.rejects(server.run(request, fifos), /could not be started/)
  assert.equal(launcherDescriptors(pid), before)
  process.kill(pid, 'SIGKILL')
  await server.ended
})

test('a server that keeps the status socket open is killed, and other commands do not wait for it', async () => {
  const { server, pid } = await startServer(`push our @kept, $status`)
  const before = launcherDescriptors(pid)
  const silent = Promise.all([1, 2, 3].map(() => assert.rejects(server.run(request, fifos), /no command was started/)))
  const other = await launcher.start(['true'], ['/dev/null', '/dev/null', '/dev/null'])
  assert.deepEqual(await other.ended, { code: 0 })
  await silent
  assert.deepEqual(await server.ended, { code: null })
  const { pid: next } = await startServer('1')
  await waitUntil(() => launcherDescriptors(next) <= before)
  process.kill(next, 'SIGKILL')
})

test('a server that reads no requests fills no memory: further commands fail at once', async () => {
  const { server, pid } = await startServer('sleep 600')
  const large = Buffer.alloc(60_000)
  const runs = Array.from({ length: 40 }, () => server.run(large, fifos))
  const ends = await Promise.allSettled(runs)
  assert.ok(ends.every(({ status }) => status === 'rejected'))
  assert.ok(ends.some((end) => end.status === 'rejected' && /sendmsg/.test(String(end.reason))))
  await server.ended
  assert.ok(pid > 0)
})
