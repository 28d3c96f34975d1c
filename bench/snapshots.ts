import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtemp, open, rm, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { openAgentChannel, runProgram } from './support/agent-channel.ts'
import { startCloud, type Cloud, type Reply } from './support/cloud.ts'
import { formatNumber, median } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { startSandbox, type RunningSandbox } from './support/sandbox.ts'

const SIZES_MIB = [10, 100, 1000] as const
const ROUNDS = 3
const FORKS = 10
const MIB = 1024 * 1024
const POLL_MS = 5
const SETTLE_MS = 3_000
/** The longest that writes of a running sandbox may wait, for each GiB that it has written. */
const PAUSE_GOAL_MS = 100

/**
 * Snapshots of running sandboxes that have written 10 MiB to 1,000 MiB, against `tar` of a file of the same size on the same disk; how long
 * writes wait meanwhile; ten forks of a sandbox with 1,000 MiB, against ten plain creates.
 */
export async function benchSnapshots(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({})
  const rows: ResultRow[] = []
  let largest: RunningSandbox | null = null
  for (const mib of SIZES_MIB) {
    if (largest !== null) await cloud.call('DELETE', `/v1/sandboxes/${largest.id}`)
    largest = await startSandbox(cloud, `bench-snapshots-${String(mib)}`)
    await inside(cloud, largest, `head -c ${String(mib * MIB)} /dev/urandom >/root/fill; sync`)
    rows.push(...(await measureSize(cloud, largest, mib)))
  }
  if (largest !== null) rows.push(...(await measureForks(cloud, largest)))
  rows.push(await measureManyForks())
  return rows
}

async function measureSize(cloud: Cloud, sandbox: RunningSandbox, mib: number): Promise<readonly ResultRow[]> {
  const dir = await mkdtemp(join(cloud.dataDir, 'bench-'))
  const source = join(dir, 'source')
  await writeRandom(source, mib)
  const rounds: { readonly snapshot: number; readonly tar: number; readonly pause: number }[] = []
  for (let round = 1; round <= ROUNDS; round++) {
    const name = `${sandbox.name}-${String(round)}`
    const tar = await timeOf(() => tarAndSync(source, join(dir, 'tar')))
    const snapshot = await timeOf(() => take(cloud, sandbox, name))
    const pausedMs = await pauseOf(cloud, sandbox, `${name}-paused`)
    rounds.push({ snapshot, tar, pause: pausedMs })
  }
  await rm(dir, { recursive: true })
  const ratio = median(rounds.map(({ snapshot, tar }) => snapshot / tar))
  const pauseMs = median(rounds.map((round) => round.pause))
  const goalMs = Math.max(PAUSE_GOAL_MS / 2, (PAUSE_GOAL_MS * mib) / 1024)
  const size = `${String(mib)} MiB`
  return [
    {
      benchmark: 'snapshots',
      what: `snapshot of a running sandbox that has written ${size}`,
      measured: `${formatNumber(median(rounds.map((round) => round.snapshot)))} ms`,
      limit: `tar and sync ${formatNumber(median(rounds.map((round) => round.tar)))} ms`,
      ratio,
      goal: '',
      isMet: null,
      samples: rounds,
    },
    {
      benchmark: 'snapshots',
      what: `the longest wait of a write meanwhile, ${size}`,
      measured: `${formatNumber(pauseMs)} ms`,
      limit: '',
      ratio: null,
      goal: `<= ${formatNumber(goalMs)} ms`,
      isMet: pauseMs <= goalMs,
    },
  ]
}

async function measureForks(cloud: Cloud, source: RunningSandbox): Promise<readonly ResultRow[]> {
  const query = 'start=true&wait_for=running'
  const image = { type: 'oci', reference: 'localhost/demo' }
  const bodyOf = (n: number) => ({ name: `plain-${String(n)}`, image, resources: { vcpus: 1, memory_mib: 512 } })
  let made: readonly Reply[] = []
  const plain = await timeOf(async () => {
    const numbers = Array.from({ length: FORKS }, (_, n) => n)
    made = await Promise.all(numbers.map((n) => cloud.call('POST', `/v1/sandboxes?${query}`, bodyOf(n))))
  })
  await removeAll(cloud, made)
  const forked = await timeOf(async () => {
    const { body } = await cloud.call('POST', `/v1/sandboxes/${source.id}/fork`, { count: FORKS, name: 'fork' })
    const forks = body['data'] as readonly { readonly id: string }[] // the reply of our own server
    made = await Promise.all(
      forks.map(({ id }) => cloud.call('GET', `/v1/sandboxes/${id}/wait?for=running&timeout=60`)),
    )
  })
  await removeAll(cloud, made)
  const ratio = forked / plain
  return [
    {
      benchmark: 'snapshots',
      what: `${String(FORKS)} forks of a running sandbox that has written ${String(SIZES_MIB.at(-1))} MiB, until all run`,
      measured: `${formatNumber(forked)} ms`,
      limit: `${String(FORKS)} plain creates ${formatNumber(plain)} ms`,
      ratio,
      goal: '<= 2.0',
      isMet: ratio <= 2,
    },
  ]
}

/** What a hundred running forks of a sandbox that has written 10 MiB take of the disk together. */
async function measureManyForks(): Promise<ResultRow> {
  await using cloud = await startCloud({ SANDYARD_VCPU_OVERCOMMIT: '64', SANDYARD_HOST_RESERVE_MIB: '512' })
  const source = await startSandbox(cloud, 'bench-forks', FORK_MEMORY_MIB)
  const [mib = 0] = SIZES_MIB
  await inside(cloud, source, `head -c ${String(mib * MIB)} /dev/urandom >/root/fill; sync`)
  await pause(SETTLE_MS)
  const before = await takenMib(cloud)
  const { body } = await cloud.call('POST', `/v1/sandboxes/${source.id}/fork`, { count: MANY_FORKS, name: 'fork' })
  const forks = body['data'] as readonly { readonly id: string }[] // the reply of our own server
  for (const { id } of forks) {
    const { body: found } = await cloud.call('GET', `/v1/sandboxes/${id}/wait?for=running&timeout=60`)
    if (found['status'] !== 'running') throw new Error(`it doesn't run: ${JSON.stringify(found)}`)
  }
  await pause(SETTLE_MS)
  const taken = (await takenMib(cloud)) - before
  return {
    benchmark: 'snapshots',
    what: `disk of ${String(MANY_FORKS)} running forks of a sandbox that has written ${String(mib)} MiB`,
    measured: `${formatNumber(taken)} MiB`,
    limit: `${String(MANY_FORKS)} full copies ${String(MANY_FORKS * mib)} MiB`,
    ratio: taken / (MANY_FORKS * mib),
    goal: '',
    isMet: null,
  }
}
const MANY_FORKS = 100
const FORK_MEMORY_MIB = 64

/** What is taken of the file system of the data folder. Blocks that files share count once. */
async function takenMib({ dataDir }: Cloud): Promise<number> {
  const { blocks, bfree, bsize } = await statfs(dataDir)
  return ((blocks - bfree) * bsize) / MIB
}

/** Deletes sandboxes, all of which must run, and waits until their capacity is free. */
async function removeAll(cloud: Cloud, made: readonly Reply[]): Promise<void> {
  for (const { body } of made)
    if (body['status'] !== 'running') throw new Error(`it doesn't run: ${JSON.stringify(body)}`)
  for (const { body } of made) await cloud.call('DELETE', `/v1/sandboxes/${String(body['id'])}`)
  await pause(SETTLE_MS)
}

async function take(cloud: Cloud, { id }: RunningSandbox, name: string): Promise<void> {
  const { body } = await cloud.call('POST', '/v1/snapshots', { kind: 'disk', sandbox_id: id, name })
  const operation = `/v1/snapshot-operations/${String(body['id'])}`
  for (let state = body; ; state = (await cloud.call('GET', operation)).body) {
    if (state['status'] === 'succeeded') return
    if (state['status'] !== 'queued' && state['status'] !== 'in_progress') throw new Error(JSON.stringify(state))
    await pause(POLL_MS)
  }
}

/**
 * How long the longest write of a sandbox took while a snapshot was made. The writer prints a byte for each
 * millisecond, which includes the start of `dd`.
 */
async function pauseOf(cloud: Cloud, sandbox: RunningSandbox, name: string): Promise<number> {
  const channel = await openAgentChannel(cloud, sandbox.id)
  const writer =
    'longest=0; while [ ! -e /root/over ]; do from=$(date +%s%3N);' +
    ' dd if=/dev/zero of=/root/pulse bs=4096 count=1 conv=notrunc 2>/dev/null; took=$(($(date +%s%3N) - from));' +
    ' [ $took -gt $longest ] && longest=$took; done; head -c $longest /dev/zero'
  await runProgram(channel, 'rm', '-f', '/root/over')
  const writing = runProgram(channel, 'sh', '-c', writer)
  await pause(200)
  await take(cloud, sandbox, name)
  await runProgram(channel, 'touch', '/root/over')
  const longestMs = await writing
  channel.close()
  return longestMs
}

async function inside(cloud: Cloud, sandbox: RunningSandbox, script: string): Promise<void> {
  const channel = await openAgentChannel(cloud, sandbox.id)
  await runProgram(channel, 'sh', '-c', script)
  channel.close()
}

async function writeRandom(path: string, mib: number): Promise<void> {
  const file = await open(path, 'w')
  for (let written = 0; written < mib; written += 10) await file.writeFile(randomBytes(10 * MIB))
  await file.sync()
  await file.close()
}

async function tarAndSync(source: string, target: string): Promise<void> {
  await promisify(execFile)('tar', ['-cf', target, source])
  await promisify(execFile)('sync', [target])
  await rm(target)
}

async function timeOf(work: () => Promise<void>): Promise<number> {
  const fromMs = performance.now()
  await work()
  return performance.now() - fromMs
}
