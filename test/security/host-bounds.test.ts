import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { totalmem } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { cgroupParentOf } from '../../src/worker/drivers/oci/cgroups/open-cgroups.ts'
import { openAttackedDriver } from '../support/attacked-driver.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { folderHash } from '../support/folder-hash.ts'
import { makeOciFixture, testRuntime, whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'

const MIB = 1024 * 1024
const NEVER = new AbortController().signal
const skip = whyNoOci()
const resources = (memoryMib: number): { memory_mib: number; vcpus: number; disk_size_mib: null } => ({
  memory_mib: memoryMib,
  vcpus: 1,
  disk_size_mib: null,
})
/** The reserve of the host with which this machine has `memoryMib` for all sandboxes of a driver. */
const reserveFor = (memoryMib: number): number => Math.floor(totalmem() / MIB) - memoryMib

attack(
  'takes the process ids of the machine by fork bombs in several sandboxes',
  { target: 'host', attacker: 'root in three sandboxes', finding: 4, skip },
  async () => {
    const limit = 1200
    await using attacked = await openAttackedDriver({ hostReserveMib: reserveFor(1024), allPidsLimit: limit })
    const parent = parentCgroup(attacked.fixture.dir)
    const spec = { resources: resources(256) }
    const victim = await attacked.start(spec)
    const attackers = [await attacked.start(spec), await attacked.start(spec), await attacked.start(spec)]
    assert.equal(parent.pidsMax(), limit)
    // Bounded, because it must not harm this machine if the attack succeeds.
    const bomb = 'i=0; while [ $i -lt 1000 ]; do sleep 3 & i=$((i+1)); done; wait'
    const bombs = attackers.map((run) => attacked.inside(run, `timeout 3 sh -c '${bomb}'`))
    let most = 0
    let isOver = false
    let works = 0
    const ended = Promise.all(bombs).then(() => {
      isOver = true
    })
    do {
      most = Math.max(most, parent.pids())
      if ((await attacked.inside(victim, 'for i in 1 2 3 4 5 6 7 8 9; do true & done; wait')).code === 0) works++
    } while (!isOver)
    await ended
    assert.ok(most < limit, `all sandboxes together had ${String(most)} processes`)
    // gVisor ends a sandbox that the host refuses a thread.
    if (testRuntime() !== 'runsc') assert.ok(most > limit / 3, `the bombs reached ${String(most)} processes only`)
    assert.ok(works > 0, 'the neighbour could start no process')
    return {
      tries: attackers.length,
      outcome: `at most ${String(most)} processes of ${String(limit)}, and a neighbour ran ${String(works)} commands meanwhile`,
    }
  },
)

attack(
  'takes the memory of the host by filling several sandboxes',
  { target: 'host', attacker: 'root in three sandboxes', finding: 4, skip },
  async () => {
    const limitMib = 256
    await using attacked = await openAttackedDriver({ hostReserveMib: reserveFor(limitMib) })
    const parent = parentCgroup(attacked.fixture.dir)
    const { capacity } = await attacked.driver.probe()
    assert.ok(capacity.memory_mib < limitMib, `the worker offers ${String(capacity.memory_mib)} MiB`)
    // Placement would not put these together on the worker. The limit holds even so.
    const attackers = [1, 2, 3].map(() => attacked.start({ resources: resources(160) }))
    const fill = 'dd if=/dev/zero of=/dev/shm/fill bs=1M count=120'
    await Promise.all(attackers.map(async (run) => attacked.inside(await run, fill)))
    const mostMib = parent.mostMemory() / MIB
    // The kernel charges some pages beyond the limit, for example those of a process that ends.
    assert.ok(mostMib <= limitMib + 1, `all sandboxes together had ${String(mostMib)} MiB`)
    assert.ok(mostMib > limitMib / 2, `they had ${String(mostMib)} MiB only`)
    return {
      tries: attackers.length,
      outcome: `at most ${mostMib.toFixed(0)} MiB of ${String(limitMib)} MiB were in use, and the worker offers ${String(capacity.memory_mib)} MiB`,
    }
  },
)

/** Fills the buffers of 100 connections of a sandbox to itself, whose other ends read nothing, and prints how many bytes they took. */
const FILL_SOCKETS = `sub at { pack 'S n N x8', 2, 7777, 0x7f000001 } socket my $server, 2, 1, 0; bind $server, at or die; listen $server, 100;
  for (1 .. 100) { socket my $client, 2, 1, 0; connect $client, at or die; accept my $other, $server; push @open, $client, $other;
  fcntl $client, 4, 2048; while (defined($n = syswrite $client, 'x' x 65536)) { $all += $n } } print $all`

attack(
  'takes memory of the host beyond its limit by the buffers of connections that nobody reads',
  {
    target: 'host',
    attacker: 'root in a sandbox',
    finding: null,
    skip: skip ?? (testRuntime() === 'runsc' ? 'gVisor has buffers of its own' : null),
  },
  async () => {
    await using attacked = await openAttackedDriver()
    const run = await attacked.start({ resources: resources(128) })
    const { stdout } = await attacked.inside(run, `perl -e "${FILL_SOCKETS.replaceAll('$', '\\$')}"`)
    const bytes = Number(stdout)
    assert.ok(bytes > 0 && bytes < 32 * MIB, `the buffers took ${stdout} bytes`)
    return { tries: 100, outcome: `100 connections took ${(bytes / MIB).toFixed(0)} MiB of a sandbox of 128 MiB` }
  },
)

test('a run of an earlier worker gets the limits of the worker that adopts it', { skip: skip ?? false }, async () => {
  const fixture = await makeOciFixture()
  const first = await fixture.open({ hostReserveMib: reserveFor(2048), pidsLimit: 300 })
  const desired = makeDesiredRun({ resources: resources(512) })
  await first.start(desired, NEVER)
  await first.close()
  const parent = parentCgroup(fixture.dir)
  const original = parent.pidsMax(desired.run_id)
  const second = await fixture.open({ hostReserveMib: reserveFor(1024), allPidsLimit: 5000, pidsLimit: 200 })
  const adopted = [parent.pidsMax(), parent.pidsMax(desired.run_id)]
  const { code } = await fixture.exec(desired.run_id, ['true'])
  await second.remove(desired.run_id)
  await second.close()
  assert.deepEqual(await fixture.leftovers(), [])
  await fixture.remove()
  assert.deepEqual([original, adopted, code], [300, [5000, 200], 0])
})

test('a sandbox reads and writes its disk at most at the rate of the setting', { skip: skip ?? false }, async (t) => {
  if (!existsSync('/sys/fs/cgroup/blkio') && !existsSync('/sys/fs/cgroup/sandyard/io.max')) {
    t.skip('this kernel has no limits of disk rates')
    return
  }
  await using attacked = await openAttackedDriver({ diskThrottle: { bytesPerSec: 4 * MIB, iops: null } })
  const run = await attacked.start()
  const { stderr } = await attacked.inside(run, 'dd if=/dev/zero of=/root/file bs=1M count=6 oflag=direct conv=fsync')
  const seconds = Number(/copied, ([\d.]+) s/.exec(stderr)?.[1])
  assert.ok(seconds > 0.8, `6 MiB at 4 MiB/s took ${String(seconds)} s`)
})

type ParentCgroup = {
  pids(): number
  /** The limit of all sandboxes, or of one run. */
  pidsMax(run?: string): number
  /** The most memory that all sandboxes had at one time, in bytes. */
  mostMemory(): number
}

/** The parent cgroup of the sandboxes of a fixture, in either version. */
function parentCgroup(fixtureDir: string): ParentCgroup {
  const parent = cgroupParentOf(folderHash(`${fixtureDir}/state`))
  const isV2 = existsSync('/sys/fs/cgroup/cgroup.controllers')
  const of = (controller: string): string => join('/sys/fs/cgroup', isV2 ? '' : controller, parent)
  const read = (path: string): number => Number(readFileSync(path, 'utf8'))
  return {
    pids: () => read(join(of('pids'), 'pids.current')),
    pidsMax: (run = '') => read(join(of('pids'), run, 'pids.max')),
    mostMemory: () => read(join(of('memory'), isV2 ? 'memory.peak' : 'memory.max_usage_in_bytes')),
  }
}
