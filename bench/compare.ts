import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { cp, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { openImages } from '../src/cli/worker/worker-storage.ts'
import { readConfig } from '../src/config.ts'
import { asId, type OrgId } from '../src/domain/ids.ts'
import { makeLog } from '../src/lib/log.ts'
import { runCommand } from '../src/lib/run-command.ts'
import { waitForDemoImage } from './start.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import type { ToolAnswer, ToolName, ToolRequest } from './support/container-tools.ts'
import { formatNumber, formatSpreadMs, median } from './support/numbers.ts'
import { ociUnavailableReason } from './support/oci.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { deleteByName, loadClient } from './support/sdk.ts'

const WARMUPS = 2
const SAMPLES = 12
const ROUNDS = 3
const STARTS = 16
const AT_ONCE = 8
const REST_MS = 50
const SETTLE_MS = 400
const LIMIT_MS = 60_000
const DEMO = 'localhost/demo'

/**
 * What a user would take instead: `docker` and `podman` with the same image, limits and a network. The samples of all
 * alternate. A tool that the machine lacks is left out, loudly.
 */
export async function benchCompare(): Promise<readonly ResultRow[]> {
  const reason = ociUnavailableReason()
  if (reason !== null) throw new Error(`no real sandbox can be started here: ${reason}`)
  await using cloud = await startCloud({ SANDYARD_VCPU_OVERCOMMIT: '1000' })
  await waitForDemoImage(cloud)
  await using tools = await openTools(cloud)
  const { Sandbox } = await loadClient(cloud)
  let made = 0
  const ours = async (): Promise<{ readonly ms: number; readonly execMs: number }> => {
    const name = `bench-compare-${String(++made)}`
    const beganMs = performance.now()
    const box = await Sandbox.builder(name).image(DEMO).cpus(1).memory(512).create()
    await box.exec('true')
    const ms = performance.now() - beganMs
    await pause(REST_MS)
    const execFromMs = performance.now()
    await box.exec('true')
    const execMs = performance.now() - execFromMs
    await deleteByName(cloud, name)
    return { ms, execMs }
  }
  const names = ['sandyard', ...tools.names] as const
  const first = new Map<string, { ms: number; execMs: number }[]>(names.map((name) => [name, []]))
  for (let sample = -WARMUPS; sample < SAMPLES; sample++) {
    for (const name of names) {
      await pause(SETTLE_MS)
      const took = name === 'sandyard' ? await ours() : await tools.ask({ tool: name, do: 'first', restMs: REST_MS })
      if (sample >= 0) first.get(name)?.push(took)
    }
  }
  const rates = new Map<string, number[]>(names.map((name) => [name, []]))
  for (let round = 0; round < ROUNDS; round++) {
    for (const name of names) {
      await pause(SETTLE_MS * 5)
      const { ms } = name === 'sandyard' ? await startMany(cloud, round) : await tools.ask({ tool: name, do: 'starts', count: STARTS, atOnce: AT_ONCE }) // prettier-ignore
      rates.get(name)?.push(STARTS / (ms / 1000))
    }
  }
  const missing = (['docker', 'podman'] as const).filter((name) => !tools.names.includes(name))
  for (const name of missing)
    process.stdout.write(`  LEFT OUT: ${name}, because this machine can not run it (see above)\n`)
  return tools.names.flatMap((name) => rowsBeside(name, first, rates))
}

function rowsBeside(
  name: ToolName,
  first: ReadonlyMap<string, readonly { ms: number; execMs: number }[]>,
  rates: ReadonlyMap<string, readonly number[]>,
): readonly ResultRow[] {
  const latency = (what: string, field: 'ms' | 'execMs', theirs: string): ResultRow => {
    const [our = [], other = []] = ['sandyard', name].map((one) => first.get(one)?.map((took) => took[field]))
    const ratio = median(our) / median(other)
    return { benchmark: 'compare', what: `${what}, beside ${name} (min / median / p95)`, measured: formatSpreadMs(our), limit: `${theirs} ${formatSpreadMs(other)}`, ratio, goal: '<= 1.0', isMet: ratio <= 1, samples: { our, other } } // prettier-ignore
  }
  const [our, other] = ['sandyard', name].map((one) => median(rates.get(one) ?? [])) as [number, number]
  const ratio = our / other
  return [
    latency('create to the end of the first command', 'ms', `${name} run and exec`),
    latency('a command', 'execMs', `${name} exec`),
    { benchmark: 'compare', what: `starts, ${String(AT_ONCE)} at a time, beside ${name}`, measured: `${formatNumber(our)} /s`, limit: `${name} run ${formatNumber(other)} /s`, ratio, goal: '>= 1.0', isMet: ratio >= 1 }, // prettier-ignore
  ]
}

/** Starts sandboxes, some at a time, and deletes them. Resolves with the time of the starts. */
async function startMany(cloud: Cloud, round: number): Promise<{ readonly ms: number }> {
  const left = Array.from({ length: STARTS }, (_, n) => `bench-compare-starts-${String(round)}-${String(n)}`)
  const ids: string[] = []
  const fromMs = performance.now()
  const one = async (): Promise<void> => {
    for (let name = left.pop(); name !== undefined; name = left.pop()) {
      const resources = { vcpus: 1, memory_mib: 512 }
      const request = { name, image: { type: 'oci', reference: DEMO }, resources }
      const { body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running', request)
      if (body['status'] !== 'running') throw new Error(`a start failed: ${JSON.stringify(body)}`)
      ids.push(String(body['id']))
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, one))
  const ms = performance.now() - fromMs
  await Promise.all(ids.map((id) => cloud.call('DELETE', `/v1/sandboxes/${id}`)))
  return { ms }
}

type Tools = {
  readonly names: readonly ToolName[]
  ask(request: ToolRequest): Promise<{ readonly ms: number; readonly execMs: number }>
} & AsyncDisposable

/** Starts support/container-tools.ts with the files of the demo image. */
async function openTools(cloud: Cloud): Promise<Tools> {
  const base = await mkdtemp('/tmp/sandyard-bench-tools-')
  const images = await openImages(readConfig({ SANDYARD_DATA_DIR: cloud.dataDir }, {}), makeLog('error'))
  const org = asId<OrgId>(randomUUID())
  const signal = AbortSignal.timeout(LIMIT_MS)
  const { layers } = await images.resolve(DEMO, { org, policy: 'if_missing', auth: null, signal })
  const root = join(base, 'root')
  await mkdir(root)
  for (const layer of layers) await cp(layer, root, { recursive: true, verbatimSymlinks: true, force: true })
  const archive = join(base, 'root.tar')
  await runCommand('tar', ['-C', root, '-cf', archive, '.'], { timeoutMs: LIMIT_MS })
  const program = join(import.meta.dirname, 'support/container-tools.ts')
  const script = 'ip link set lo up && exec "$0" "$@"'
  const command = ['-n', '-m', '--propagation', 'private', 'sh', '-c', script, process.execPath, program, base, archive]
  const child = spawn('unshare', command, { stdio: ['pipe', 'pipe', 'inherit'] })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const nextLine = async (): Promise<string> => {
    const { value, done } = await lines.next()
    if (done === true) throw new Error('the program that runs docker and podman ended')
    return value
  }
  const names = JSON.parse(await nextLine()) as readonly ToolName[] // written by container-tools.ts
  return {
    names,
    async ask(request) {
      child.stdin.write(`${JSON.stringify(request)}\n`)
      const answer = JSON.parse(await nextLine()) as ToolAnswer // written by container-tools.ts
      if ('error' in answer) throw new Error(answer.error)
      return answer
    },
    async [Symbol.asyncDispose]() {
      const ended = once(child, 'exit')
      child.stdin.end()
      const late = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS)
      await ended
      clearTimeout(late)
      await rm(base, { recursive: true, force: true })
    },
  }
}
