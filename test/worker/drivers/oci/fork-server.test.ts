import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import type { Guest } from '../../../../src/worker/channel/guest.ts'
import { makeGuest } from '../../../support/container-guest.ts'
import { makeForkServers } from '../../../../src/worker/drivers/oci/exec/fork-servers.ts'
import { makeLauncher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { makeSeededChoices } from '../../../fault/seeded-choices.ts'
import { connectAgent, type ExecOptions, type Finished } from '../../../support/agent-client.ts'
import {
  startTestContainer,
  UNLIMITED_SESSIONS,
  whyNoContainer,
  type TestContainer,
} from '../../../support/container.ts'
import { testRuntime } from '../../../support/oci-driver.ts'
import { waitUntil } from '../../../support/wait.ts'

const hasServers = testRuntime() === 'crun' || testRuntime() === 'runc'
const skip = whyNoContainer() ?? (hasServers ? false : 'only crun and runc have fork servers')
const SEEDS = 12

/** Prints what a process can see of itself, its id first. */
const LOOK = String.raw`
echo $$
grep -vE '^(Vm|Rss|voluntary|nonvoluntary|State|SigQ|Hugetlb|Cpus|Mems|FDSize|Pid|PPid|Tgid|NStgid|NSpid|NSpgid|NSsid)' /proc/self/status
cat /proc/self/limits /proc/self/cgroup /proc/self/oom_score_adj /proc/self/timerslack_ns /proc/self/coredump_filter
cat /proc/self/setgroups /proc/self/uid_map
env
ulimit -a
umask
pwd
id
for one in cgroup ipc mnt net pid time user uts; do readlink /proc/self/ns/$one; done
for fd in 0 1 2; do [ -p /proc/self/fd/$fd ] && echo pipe $fd; [ -O /proc/self/fd/$fd ] && echo own $fd; done
cut -d' ' -f7,8,18-20,39-41 /proc/self/stat
printf '[%s]' "$0" "$@"
`

describe('a command by a fork server', { skip, timeout: 300_000 }, () => {
  const log = makeLog('silent')
  const launcher = makeLauncher(log)
  const common = { log, sessions: UNLIMITED_SESSIONS, launcher, pty: null }
  let box: TestContainer
  let byRuntime: Guest
  before(async () => {
    box = await startTestContainer({ spec: { env: [{ key: 'FROM_SPEC', value: 'spec' }] } })
    byRuntime = makeGuest(box.container, common)
  })
  after(() => {
    launcher.close()
    box.remove()
  })

  /** A guest whose fork server runs. */
  async function byServer(): Promise<Guest> {
    const forkServers = makeForkServers({ launcher, clock: systemClock, log })
    await forkServers.prepare(box.container)
    return makeGuest(box.container, { ...common, forkServers })
  }
  async function run(guest: Guest, request: ExecOptions): Promise<Finished> {
    const client = connectAgent(guest)
    try {
      return await client.finish(client.exec(request))
    } finally {
      await client.hangUp()
    }
  }
  /** The host's ids of the container's processes with this text in their command lines. */
  function pidsWith(text: string): readonly number[] {
    return readdirSync('/proc').flatMap((name) => {
      if (!/^\d+$/.test(name)) return []
      try {
        const isInside = readFileSync(`/proc/${name}/cgroup`, 'utf8').includes(box.container.id)
        return isInside && readFileSync(`/proc/${name}/cmdline`, 'utf8').includes(text) ? [Number(name)] : []
      } catch {
        return [] // it has ended
      }
    })
  }

  for (let seed = 1; seed <= SEEDS; seed++)
    test(`sees what one by the runtime sees, except that it leads a session (seed ${String(seed)})`, async () => {
      const request = randomRequest(seed)
      const [forked, plain] = [await run(await byServer(), request), await run(byRuntime, request)]
      const [own = '', ...seen] = forked.stdout.split('\n')
      assert.ok(seen.length > 30, forked.stdout + forked.stderr)
      assert.deepEqual(
        { code: forked.code, stderr: forked.stderr, seen },
        { code: plain.code, stderr: plain.stderr, seen: plain.stdout.split('\n').slice(1) },
      )
      assert.match(own, /^\d+$/)
    })

  test('leads its own session and group, and has three descriptors', async () => {
    const client = connectAgent(await byServer())
    const marker = '1234.5'
    const id = client.exec({ cmd: 'sleep', args: [marker] })
    await waitUntil(() => pidsWith(marker).length === 1)
    const [pid = 0] = pidsWith(marker)
    assert.deepEqual(readdirSync(`/proc/${String(pid)}/fd`), ['0', '1', '2'])
    const inner = (name: string): string | undefined =>
      new RegExp(String.raw`^${name}:.*\s(\d+)$`, 'm').exec(readFileSync(`/proc/${String(pid)}/status`, 'utf8'))?.[1]
    assert.deepEqual([inner('NSpgid'), inner('NSsid')], [inner('NSpid'), inner('NSpid')])
    client.send(id, 'core.exec.signal', { signal: 9 })
    assert.equal((await client.finish(id)).code, -1)
    await client.hangUp()
  })

  test('is one process of the sandbox, which no other process of it may trace', async () => {
    const guest = await byServer()
    const script = 'for p in /proc/[0-9]*; do grep -q fork-server.pl $p/cmdline && cat $p/environ; done'
    const { stderr } = await run(guest, { cmd: 'sh', args: ['-c', script] })
    assert.match(stderr, /environ: Permission denied/)
  })

  test('does not need it: a sandbox that kills its fork server gets the runtime’s start', async () => {
    const guest = await byServer()
    const before = pidsWith('fork-server.pl')
    for (const pid of before) process.kill(pid, 'SIGKILL')
    assert.equal((await run(guest, { cmd: 'echo', args: ['alive'] })).stdout, 'alive\n')
    await waitUntil(() => pidsWith('fork-server.pl').length === 0)
  })

  test('runs once if the fork server does not answer, which is then killed', async () => {
    const guest = await byServer()
    const stopped = pidsWith('fork-server.pl')
    for (const pid of stopped) process.kill(pid, 'SIGSTOP')
    assert.equal((await run(guest, { cmd: 'sh', args: ['-c', 'echo ran >> /tmp/runs'] })).code, 0)
    await waitUntil(() => stopped.every((pid) => !pidsWith('fork-server.pl').includes(pid)))
    assert.equal((await run(byRuntime, { cmd: 'cat', args: ['/tmp/runs'] })).stdout, 'ran\n')
  })

  test('that can not start fails as one by the runtime', async () => {
    await run(byRuntime, { cmd: 'sh', args: ['-c', 'mkdir /tmp/first && echo text > /tmp/first/ls && chmod +x /tmp/first/ls && mkdir -m 700 /tmp/closed'] }) // prettier-ignore
    const guest = await byServer()
    const requests: readonly ExecOptions[] = [
      { cmd: 'missing' },
      { cmd: '/tmp' },
      { cmd: '/etc/passwd' },
      { cmd: 'true', cwd: '/missing' },
      { cmd: 'true', cwd: '/etc/passwd' },
      { cmd: 'true', cwd: '/tmp/closed', user: '4242' },
      { cmd: 'ls', env: ['PATH=/tmp/first:/usr/bin:/bin'] }, // the first one is no program, and no later one is looked for
      { cmd: 'true', user: 'nobody-knows' },
    ]
    for (const request of requests) {
      const { last } = await run(guest, request)
      assert.equal(last.type, 'core.exec.failed', JSON.stringify(request))
      assert.deepEqual(last.payload, (await run(byRuntime, request)).last.payload)
    }
    assert.equal((await run(guest, { cmd: 'true' })).code, 0)
  })

  test('is started by the runtime if its request is longer than the server reads', async () => {
    const request = { cmd: 'sh', args: ['-c', 'echo ${#1}', 'sh', 'x'.repeat(100_000)] }
    assert.equal((await run(await byServer(), request)).stdout, '100000\n')
  })
})

/** A request for `LOOK` with random parts. */
function randomRequest(seed: number): ExecOptions {
  const choices = makeSeededChoices(seed)
  const pick = <T>(...values: readonly T[]): T => choices.pick(values)
  const user = pick(null, 'root', 'alice', 'alice:staff', '4242:77', '1000')
  return {
    cmd: pick('sh', '/usr/bin/sh'),
    args: ['-c', LOOK, ...pick([], ['', ' a  b ', 'ünï\n', '$HOME', '"'])],
    env: pick([], ['A=b c', 'EMPTY=', 'TWO=a=b', 'PATH=:/nowhere:/usr/bin'], ['HOME=/tmp']),
    rlimits: pick(
      [],
      [{ resource: 'nofile', soft: 100, hard: 200 }],
      [
        { resource: 'core', soft: 0, hard: 0 },
        { resource: 'nproc', soft: 50, hard: 60 },
        { resource: 'fsize', soft: 1_000_000, hard: 2_000_000 },
      ],
    ),
    ...(user === null ? {} : { user }),
    ...pick({}, { cwd: '/tmp' }, { cwd: '/home/alice' }),
  }
}
