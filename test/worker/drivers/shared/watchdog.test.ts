import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, test } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeLauncher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { startWatchdog } from '../../../../src/worker/drivers/shared/watchdog.ts'
import { waitUntil } from '../../../support/wait.ts'

// Tests of the watchdog process. Folders replace cgroups, and processes of the test replace sandboxes.

const SCRIPT = join(import.meta.dirname, '../../../../src/worker/perl/watchdog.pl')
/** The time of several checks of a watchdog. Only waiting shows that none of them kills. */
const LOOKS_MS = 700

let folder: string
let deadlineFile: string
let children: ChildProcess[] = []
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sandyard-watchdog-'))
  deadlineFile = join(folder, 'lease.json')
  writeDeadline(60_000)
})
afterEach(() => {
  for (const child of children) child.kill('SIGKILL')
  children = []
  rmSync(folder, { recursive: true, force: true })
})

/** Writes a deadline that passes in this many milliseconds. */
function writeDeadline(inMs: number, boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()): void {
  const uptimeMs = Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]) * 1_000
  writeFileSync(deadlineFile, JSON.stringify({ boot, over_at_ms: Math.floor(uptimeMs + inMs) }))
}

function start(file: string, args: readonly string[]): ChildProcess {
  const child = spawn(file, args, { stdio: ['pipe', 'ignore', 'inherit'] })
  children.push(child)
  return child
}

/** Starts a process, and lists it as if it were in a cgroup two levels below the driver's, on version 1. */
function startSandbox(run: string): ChildProcess {
  const child = start('sleep', ['1000'])
  mkdirSync(join(folder, 'groups', run, 'c'), { recursive: true })
  writeFileSync(join(folder, 'groups', run, 'c', 'cgroup.procs'), `${String(child.pid)}\n`)
  return child
}

const watch = (place = `cgroups:${folder}/groups`): ChildProcess =>
  start('perl', [SCRIPT, deadlineFile, `${deadlineFile}.watch`, place])
/** Starts a watchdog and waits until it has the lock, so that it acts. */
async function watchAlone(...args: Parameters<typeof watch>): Promise<ChildProcess> {
  const dog = watch(...args)
  const lock = new RegExp(`FLOCK +ADVISORY +WRITE +${String(dog.pid)} `)
  await waitUntil(() => lock.test(readFileSync('/proc/locks', 'utf8')))
  return dog
}
const lives = ({ exitCode, signalCode }: ChildProcess): boolean => exitCode === null && signalCode === null
const looks = (): Promise<void> => systemClock.sleep(LOOKS_MS)

test('sandboxes run until the renew deadline, and are killed once it has passed, as is every sandbox that starts later', async () => {
  const sandbox = startSandbox('one')
  await watchAlone()
  await looks()
  assert.ok(lives(sandbox))
  writeDeadline(0)
  await waitUntil(() => !lives(sandbox))
  const late = startSandbox('late')
  await waitUntil(() => !lives(late))
})

test('a deadline that was written before this boot, or that can’t be read, counts as passed', async () => {
  for (const spoil of [() => writeDeadline(60_000, 'another'), () => writeFileSync(deadlineFile, '{"boot":')]) {
    writeDeadline(60_000)
    const sandbox = startSandbox('one')
    const dog = await watchAlone()
    await looks()
    assert.ok(lives(sandbox))
    spoil()
    await waitUntil(() => !lives(sandbox))
    dog.kill('SIGKILL')
    await waitUntil(() => !lives(dog))
  }
})

test('a watchdog outlives its worker while there are runs, and exits when there are none or the deadline’s file is gone', async () => {
  const sandbox = startSandbox('one')
  const dog = await watchAlone()
  dog.stdin?.end()
  await looks()
  assert.ok(lives(dog) && lives(sandbox))
  rmSync(join(folder, 'groups/one'), { recursive: true })
  await waitUntil(() => !lives(dog))
  assert.equal(dog.exitCode, 0)
  const other = await watchAlone()
  startSandbox('two')
  await looks()
  rmSync(deadlineFile)
  await waitUntil(() => !lives(other))
})

test('a watchdog that outlives its worker sleeps between its checks', async () => {
  startSandbox('one')
  const dog = await watchAlone()
  dog.stdin?.end()
  await looks()
  const before = cpuTicks(dog)
  await looks()
  await looks()
  assert.ok(lives(dog))
  const took = cpuTicks(dog) - before
  assert.ok(took < 30, `${String(took)} ticks of the processor in ${String(2 * LOOKS_MS)} ms`)
})

test('only one of two watchdogs acts, and the other one replaces it when it ends', async () => {
  startSandbox('one')
  const first = await watchAlone()
  const second = watch()
  const third = watch()
  third.stdin?.end() // as if the worker of this watchdog had died
  await waitUntil(() => !lives(third))
  assert.ok(lives(first) && lives(second))
  first.kill('SIGKILL')
  await waitUntil(() => !lives(first))
  const sandbox = startSandbox('two')
  writeDeadline(0)
  await waitUntil(() => !lives(sandbox))
})

test('only virtual machines with the name of a recorded sandbox are killed', async () => {
  const id = '0a000000-0000-7000-8000-000000000001'
  mkdirSync(join(folder, 'runs/one'), { recursive: true })
  writeFileSync(join(folder, 'runs/one/state.json'), JSON.stringify({ version: 1, sandbox_id: id }))
  const vm = (name: string): ChildProcess => start('perl', ['-e', 'sleep 1000', 'sandbox', '--name', name])
  const [ours, theirs] = [vm(`sy-${id}`), vm('sy-0b000000-0000-7000-8000-000000000002')]
  await watchAlone(`vms:${folder}/runs`)
  await looks()
  assert.ok(lives(ours))
  writeDeadline(0)
  await waitUntil(() => !lives(ours))
  await looks()
  assert.ok(lives(theirs))
})

test('the worker restarts a killed watchdog, and ends it when the worker closes', async () => {
  const sandbox = startSandbox('one')
  const log = makeLog('silent')
  const dog = startWatchdog({ deadlineFile, runs: `cgroups:${folder}/groups`, clock: systemClock, log })
  const pids = (): readonly string[] => processesWith(`${deadlineFile}.watch`)
  const [first] = await waitUntil(() => pids().length === 1 && pids())
  const environment = readFileSync(`/proc/${String(first)}/environ`, 'utf8').split('\0')
  assert.deepEqual(environment.filter((one) => !one.startsWith('PATH=')), ['']) // prettier-ignore
  process.kill(Number(first), 'SIGKILL')
  await waitUntil(() => pids().length === 1 && pids()[0] !== first)
  writeDeadline(0)
  await waitUntil(() => !lives(sandbox))
  rmSync(join(folder, 'groups'), { recursive: true })
  await dog.close()
  assert.deepEqual(pids(), [])
})

test('nothing can be started once the renew deadline has passed', async () => {
  const launcher = makeLauncher(makeLog('silent'), deadlineFile)
  const files = ['/dev/null', '/dev/null', '/dev/null'] as const
  assert.deepEqual(await (await launcher.start(['true'], files)).ended, { code: 0 })
  writeDeadline(0)
  await assert.rejects(launcher.start(['true'], files), /the renew deadline of this worker has passed/)
  launcher.close()
})

/** The processor time of a process in hundredths of a second: fields 14 and 15 of proc_pid_stat(5). */
function cpuTicks({ pid }: ChildProcess): number {
  const fields = readFileSync(`/proc/${String(pid)}/stat`, 'utf8')
    .replace(/^.*\) /, '')
    .split(' ')
  return Number(fields[11]) + Number(fields[12])
}

/** The watchdog processes with this word in their command line. */
function processesWith(word: string): readonly string[] {
  return readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')
      return words[0] === 'perl' && words.includes(word)
    } catch {
      return false // the process ended after the folder was listed
    }
  })
}
