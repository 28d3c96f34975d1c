import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatRate, median } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { repliesPerSecond, runLoad, type LoadJob } from './support/run-load.ts'

const ROUNDS = 3
const CONNECTIONS = 32
const GOAL = 0.5
const READY_TRIES = 100
/** A web server in the sandbox, with a page of 1 KiB. */
const APP = `require('node:http').createServer((q, r) => r.end('x'.repeat(1024))).listen(3000, '127.0.0.1')`

/** Requests to a port of a real sandbox, against a bare Node proxy before the same server on the machine. */
export async function benchPreview(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({})
  const slug = await startWebServer(cloud)
  const job: LoadJob = {
    host: cloud.host,
    port: cloud.port,
    connections: CONNECTIONS,
    warmupMs: 1_500,
    durationMs: 4_000,
    method: 'GET',
    path: '/',
    headers: { host: `3000-${slug}.localhost`, authorization: cloud.headers['authorization'] ?? '' },
    body: '',
    expectedStatus: 200,
  }
  await untilReady(job)
  await using app = await startProcess([
    '-e',
    `${APP.replace('3000', '0')}.on('listening', function () { console.log(this.address().port) })`,
  ])
  await using bare = await startProcess([join(import.meta.dirname, 'support/bare-proxy.ts'), String(app.port)])
  const rounds: { readonly ours: number; readonly limit: number }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const limit = repliesPerSecond(job, await runLoad({ ...job, port: bare.port }))
    rounds.push({ ours: repliesPerSecond(job, await runLoad(job)), limit })
  }
  const ratio = median(rounds.map(({ ours, limit }) => ours / limit))
  return [
    {
      benchmark: 'preview',
      what: `requests to a port of a sandbox, ${String(CONNECTIONS)} connections`,
      measured: formatRate(median(rounds.map(({ ours }) => ours))),
      limit: `bare proxy ${formatRate(median(rounds.map((round) => round.limit)))}`,
      ratio,
      goal: `>= ${String(GOAL)}`,
      isMet: ratio >= GOAL,
      samples: rounds,
    },
  ]
}

/** Starts a sandbox with the Node of this machine, which runs the web server. Resolves with its slug. */
async function startWebServer(cloud: Cloud): Promise<string> {
  const { body: volume } = await cloud.call('POST', '/v1/volumes', { name: 'tools' })
  const libraries = [
    ...execFileSync('ldd', [process.execPath])
      .toString()
      .matchAll(/=> (\/\S*)/g),
  ]
  for (const path of [process.execPath, ...libraries.map(([, library = '']) => library)]) {
    const { status } = await fetch(
      `http://${cloud.host}:${String(cloud.port)}/v1/volumes/${String(volume['id'])}/files/content`,
      {
        method: 'PUT',
        headers: { ...cloud.headers, 'x-msb-file-path': Buffer.from(basename(path)).toString('base64url') },
        body: await readFile(path),
      },
    )
    if (status !== 200) throw new Error(`${path} was not stored: ${String(status)}`)
  }
  const command = `chmod +x /tools/node; exec env LD_LIBRARY_PATH=/tools /tools/node -e "$APP"`
  const wanted = {
    name: 'bench-preview',
    image: { type: 'oci', reference: 'localhost/demo' },
    runtime: { entrypoint: [], cmd: ['sh', '-c', command] },
    env: [{ key: 'APP', value: APP }],
    mounts: [{ type: 'named', name: 'tools', guest: '/tools' }],
    resources: { vcpus: 2, memory_mib: 512 },
  }
  const { body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running', wanted)
  if (body['status'] !== 'running') throw new Error(`it doesn't run: ${JSON.stringify(body)}`)
  return String(body['slug'])
}

async function untilReady(job: LoadJob): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await runLoad({ ...job, connections: 1, warmupMs: 0, durationMs: 1 })
      return
    } catch (error) {
      if (tries === READY_TRIES) throw error
      await pause(100)
    }
  }
}

/** Starts a server that prints its port. */
async function startProcess(args: readonly string[]): Promise<{ readonly port: number } & AsyncDisposable> {
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const [line] = await once(child.stdout, 'data')
  return {
    port: Number(String(line)),
    async [Symbol.asyncDispose]() {
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  }
}
