import assert from 'node:assert/strict'
import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { after, before } from 'node:test'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { SANDBOX_IDS } from '../../src/domain/workers/id-range.ts'
import { folderHash } from '../support/folder-hash.ts'
import { openAttackedDriver, type AttackedDriver } from '../support/attacked-driver.ts'
import { testRuntime, whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'

/**
 * The kernel counts inotify instances, pending signals, message queues and pipe buffers for each user of the machine. If all
 * sandboxes are one user, one of them can take everything from the others and from the host's root.
 */
const skip = whyNoOci()
const facts = { target: 'neighbours', attacker: 'root in a sandbox', finding: 5, skip } as const

let attacked: AttackedDriver
let attacker: DesiredRun
let neighbour: DesiredRun

before(async () => {
  if (skip !== null) return
  attacked = await openAttackedDriver()
  attacker = await attacked.start()
  neighbour = await attacked.start()
})
after(async () => {
  if (skip === null) await attacked[Symbol.asyncDispose]()
})

/** gVisor has timers and queues of its own, in the memory of the sandbox. The host's kernel then bounds nothing. */
const isGvisor = testRuntime() === 'runsc'
const isArm = process.arch === 'arm64'
/** System calls by their numbers, because the sandbox's Perl has no modules. */
const CALLS = isArm
  ? { inotify_init1: 26, timer_create: 107, mq_open: 180, io_setup: 0 }
  : { inotify_init1: 294, timer_create: 222, mq_open: 240, io_setup: 206 }

/** Perl expressions that take one more of something and are true if the kernel gave it. `$n` counts from 0. */
const TAKE = {
  inotify: `syscall(${String(CALLS.inotify_init1)}, 0) >= 0`,
  timers: `do { my $id = "\\0" x 8; syscall(${String(CALLS.timer_create)}, 0, 0, $id) == 0 }`,
  queues: `do { my ($name, $attributes) = ("q$n", pack 'q8', 0, 10, 8192); syscall(${String(CALLS.mq_open)}, $name, 0102, 0600, $attributes) >= 0 }`,
  requests: `do { my $context = "\\0" x 8; syscall(${String(CALLS.io_setup)}, 64, $context) == 0 }`,
  pipes: `do { pipe my $out, my $in; push @held, $out, $in; fcntl $in, 1031, 1048576 }`, // F_SETPIPE_SZ
  terminals: `do { my $isOpen = open my $terminal, '+<', '/dev/ptmx'; push @held, $terminal; $isOpen }`,
} as const

attack('takes the inotify instances of other sandboxes and of the host', facts, async () => {
  const limit = readNumber('/proc/sys/fs/inotify/max_user_instances')
  const most = Math.min(700, Math.floor(limit * 0.7)) // twice this is more than one user has
  const [taken, left] = [await takeAndHold(attacker, 'inotify', most), await takeOnce(neighbour, 'inotify', most)]
  assert.deepEqual([taken, left], [most, most])
  return { tries: taken, outcome: `with ${String(taken)} in use by one sandbox, another got ${String(left)} more` }
})

attack('takes the pending signals of other sandboxes and of the host', facts, async () => {
  const before = pendingSignalsOfRoot()
  const taken = await takeAndHold(attacker, 'timers', 20_000)
  const ofRoot = pendingSignalsOfRoot() - before
  const left = await takeOnce(neighbour, 'timers', 1000)
  assert.ok(taken > 0 && (isGvisor || taken <= 16_384), `one sandbox got ${String(taken)} timers`)
  assert.ok(ofRoot < 100, `the host's root was charged for ${String(ofRoot)} of them`)
  assert.equal(left, 1000)
  return {
    tries: 20_000,
    outcome: `one sandbox got ${String(taken)} timers, none charged to the host's root; another got all of 1000`,
  }
})

attack('takes the message queues of other sandboxes and of the host', facts, async () => {
  const taken = await takeAndHold(attacker, 'queues', 200)
  const left = await takeOnce(neighbour, 'queues', 200)
  assert.ok(taken > 0 && (isGvisor || taken < 200), `one sandbox got ${String(taken)} queues`)
  assert.equal(left, taken)
  return { tries: 200, outcome: `one sandbox got ${String(taken)} queues, and another as many` }
})

attack('takes the pipe buffers of other sandboxes', facts, async () => {
  const taken = await takeAndHold(attacker, 'pipes', 200)
  const left = await takeOnce(neighbour, 'pipes', 1)
  assert.ok(taken > 0)
  assert.equal(left, 1, 'the other sandbox got no large pipe')
  return { tries: 200, outcome: `with ${String(taken)} MiB of pipes in one sandbox, another still got a pipe of 1 MiB` }
})

attack('takes the requests for asynchronous I/O of the whole machine', facts, async () => {
  const before = readNumber('/proc/sys/fs/aio-nr')
  await takeAndHold(attacker, 'requests', 1)
  const grown = readNumber('/proc/sys/fs/aio-nr') - before
  assert.ok(grown < 64, `the machine's count of requests grew by ${String(grown)}`)
  return { tries: 1, outcome: "the machine's count of requests stayed the same" }
})

attack('takes the terminals of the whole machine', facts, async () => {
  const before = readNumber('/proc/sys/kernel/pty/nr')
  const taken = await takeAndHold(attacker, 'terminals', 100)
  const grown = readNumber('/proc/sys/kernel/pty/nr') - before // other tests may open some meanwhile
  assert.ok(taken > 0 && (isGvisor || taken <= 64), `one sandbox got ${String(taken)} terminals`)
  assert.ok(grown < 100, `one sandbox holds ${String(grown)} terminals of the machine`)
  return { tries: 100, outcome: `one sandbox got ${String(taken)} terminals` }
})

attack('owns files by an id that another sandbox has', facts, async () => {
  const ranges = new Set<number>()
  const runs = [attacker, neighbour]
  for (const run of runs) {
    const { code, stderr } = await attacked.inside(run, 'echo x >/tmp/mine; echo x >/tmp/alice; chown 1000 /tmp/alice')
    assert.equal(code, 0, stderr)
    const root = join(
      '/run/sandyard',
      folderHash(join(attacked.fixture.dir, 'state')),
      attacked.fixture.containerIdOf(run.run_id),
      'root/tmp',
    )
    const mine = statSync(join(root, 'mine'))
    const { first, last } = attacked.fixture.settings.uidRange
    assert.ok(mine.uid >= first && mine.uid + SANDBOX_IDS - 1 <= last, `the owner is ${String(mine.uid)}`)
    assert.equal(mine.gid, mine.uid)
    assert.equal(statSync(join(root, 'alice')).uid, mine.uid + 1000)
    ranges.add(Math.floor((mine.uid - first) / SANDBOX_IDS))
  }
  assert.equal(ranges.size, runs.length, 'both sandboxes have the same ids')
  return { tries: runs.length, outcome: 'the files of two sandboxes had owners from two ranges of 65,536 ids' }
})

/** Takes up to `most` of something in a sandbox and keeps it for a minute. Returns how many the kernel gave. */
async function takeAndHold(run: DesiredRun, what: keyof typeof TAKE, most: number): Promise<number> {
  return await take(run, { what, most, holdSecs: 60 })
}

/** Takes up to `most` of something in a sandbox and gives it back at once. */
async function takeOnce(run: DesiredRun, what: keyof typeof TAKE, most: number): Promise<number> {
  return await take(run, { what, most, holdSecs: 0 })
}

type Taking = { readonly what: keyof typeof TAKE; readonly most: number; readonly holdSecs: number }

async function take({ run_id }: DesiredRun, { what, most, holdSecs }: Taking): Promise<number> {
  const script = `pipe my $result, my $tell;
    if (fork) { close $tell; print scalar <$result>; exit }
    my (@held, $n);
    for ($n = 0; $n < ${String(most)}; $n++) { ${TAKE[what]} or last }
    syswrite $tell, "$n\\n";
    close $_ for $tell, *STDOUT, *STDERR;
    sleep ${String(holdSecs)}`
  const { stdout, stderr } = await attacked.fixture.exec(run_id, ['perl', '-e', script])
  assert.match(stdout, /^\d+\n$/, stderr)
  return Number(stdout)
}

/** The pending signals and timers that the kernel charges to the host's root (proc_pid_status(5), `SigQ`). */
function pendingSignalsOfRoot(): number {
  return Number(/^SigQ:\s*(\d+)/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1])
}

function readNumber(path: string): number {
  return Number(readFileSync(path, 'utf8'))
}
