import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { after, before } from 'node:test'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { openAttackedDriver, type AttackedDriver } from '../support/attacked-driver.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { testRuntime, whyNoOci } from '../support/oci-driver.ts'
import { attack } from '../support/security-attack.ts'
import { waitUntil } from '../support/wait.ts'

/** The init of an image manages cgroups of its own. None of them may free its processes from the sandbox's limits. */
const skip = whyNoOci() ?? (testRuntime() === 'runsc' ? 'a sandbox in gVisor gets no cgroups' : null)
const facts = { target: 'host', attacker: 'root in a sandbox whose image has an init', finding: null, skip } as const
const PIDS = 64

let attacked: AttackedDriver
let run: DesiredRun

/** Moves to a cgroup of its own, and starts processes without end once `/tmp/go` exists. */
const INIT = `mkdir -p /sys/fs/cgroup/own/inner && echo $$ >/sys/fs/cgroup/own/inner/cgroup.procs && echo >/tmp/moved
while [ ! -e /tmp/go ]; do sleep 0.05; done
trap "" TERM
while :; do sh -c 'i=0; while [ $i -lt 200 ]; do sleep 1 & i=$((i+1)); done; wait'; done`

before(async () => {
  if (skip !== null) return
  attacked = await openAttackedDriver({ pidsLimit: PIDS })
  run = await attacked.start({ init: { cmd: '/bin/sh', args: ['-c', INIT], env: [] } })
})
after(async () => {
  if (skip === null) await attacked[Symbol.asyncDispose]()
})

attack('changes the limits of its cgroup, or reaches the cgroups above it', facts, async () => {
  const { stdout } = await attacked.inside(run, 'ls /sys/fs/cgroup')
  const limits = stdout.split('\n').filter((name) => /\.(max|high|low|min|weight|freeze|kill|pressure)\b/.test(name))
  const writes = [
    ...limits.map((name) => `echo max >/sys/fs/cgroup/${name}`),
    'echo 100000 >/sys/fs/cgroup/cgroup.max.descendants',
    'mkdir /sys/fs/cgroup/../outside',
    'mount -t cgroup2 none /mnt',
    'mount -t cgroup -o pids none /mnt',
  ]
  for (const write of writes) {
    const { code } = await attacked.inside(run, `{ ${write}; } 2>/dev/null`)
    assert.notEqual(code, 0, write)
  }
  const { stdout: mounts } = await attacked.inside(run, 'cat /proc/self/mountinfo /proc/1/cgroup')
  const [dir, key] = [attacked.fixture.cpuCgroupOf(run.run_id), 'sandyard/']
  assert.ok(!mounts.includes(key) && !mounts.includes(basename(dirname(dir))), mounts)
  return { tries: writes.length, outcome: `each of ${String(writes.length)} attempts failed` }
})

attack('takes memory of the kernel by cgroups without number', facts, async () => {
  const count = 'cd /sys/fs/cgroup; n=0; while [ $n -lt 3000 ] && mkdir c$n 2>/dev/null; do n=$((n+1)); done; echo $n'
  const made = Number((await attacked.inside(run, count)).stdout)
  assert.ok(made > 0 && made <= 1024, `${String(made)} cgroups were made`)
  return { tries: 3000, outcome: `${String(made)} cgroups were made, and all were removed with the sandbox` }
})

attack('leaves its limit of processes by moving to a cgroup of its own', facts, async () => {
  const { code } = await attacked.inside(run, 'while [ ! -e /tmp/moved ]; do sleep 0.01; done; echo >/tmp/go')
  assert.equal(code, 0)
  const current = `${attacked.fixture.cpuCgroupOf(run.run_id).replace('/cpu/', '/pids/')}/pids.current`
  const readCount = (): number => Number(readFileSync(current, 'utf8'))
  await waitUntil(() => readCount() > PIDS / 2)
  let most = 0
  for (let tries = 0; tries < 200; tries++) {
    most = Math.max(most, readCount())
    await systemClock.sleep(5)
  }
  assert.ok(most <= PIDS, `the sandbox had ${String(most)} processes`)
  return { tries: 200, outcome: `at most ${String(most)} processes of ${String(PIDS)}` }
})
