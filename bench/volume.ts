import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdtemp, open, rm, stat } from 'node:fs/promises'
import { request } from 'node:http'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { promisify } from 'node:util'
import { startCloud, type Cloud } from './support/cloud.ts'
import { median, formatNumber } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'

const SIZE_MIB = 256
const ROUNDS = 5
/** Rounds before those that count: both programs are compiled and their heaps have grown, as after some use. */
const WARM_UP_ROUNDS = 2
/** The least share of the copy's rate. */
const GOAL = 0.5
const MIB = 1024 * 1024

/**
 * Copies a file into a volume and out of it over HTTP, in MB/s. The limit is a plain, synced copy of the same file on
 * the same disk. Client, server and worker share this machine.
 */
export async function benchVolume(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const dir = await mkdtemp(join(cloud.dataDir, 'bench-'))
  const source = join(dir, 'source')
  await writeRandom(source)
  const volume = await cloud.call('POST', '/v1/volumes', { name: 'bench' })
  const path = `/v1/volumes/${String(volume.body['id'])}/files/content`
  const rounds: { readonly copy: number; readonly upload: number; readonly download: number }[] = []
  for (let round = -WARM_UP_ROUNDS; round < ROUNDS; round++) {
    const rates = {
      copy: await rateOf(() => copyPlainly(source, join(dir, 'copy'))),
      upload: await rateOf(() => upload(cloud, path, source)),
      download: await rateOf(() => download(cloud, path)),
    }
    if (round >= 0) rounds.push(rates)
  }
  await rm(dir, { recursive: true })
  return (['upload', 'download'] as const).map((way) => {
    const ratio = median(rounds.map((round) => round[way] / round.copy))
    return {
      benchmark: 'volume',
      what: `${way} of ${String(SIZE_MIB)} MiB through the file routes`,
      measured: `${formatNumber(median(rounds.map((round) => round[way])))} MB/s`,
      limit: `${formatNumber(median(rounds.map(({ copy }) => copy)))} MB/s, cp and sync`,
      ratio,
      goal: `>= ${String(GOAL)}`,
      isMet: ratio >= GOAL,
      samples: rounds,
    }
  })
}

async function writeRandom(path: string): Promise<void> {
  const file = await open(path, 'w')
  for (let written = 0; written < SIZE_MIB; written += 16) await file.writeFile(randomBytes(16 * MIB))
  await file.sync()
  await file.close()
}

async function rateOf(work: () => Promise<void>): Promise<number> {
  const fromMs = performance.now()
  await work()
  return (SIZE_MIB * MIB) / 1e6 / ((performance.now() - fromMs) / 1000)
}

async function copyPlainly(source: string, target: string): Promise<void> {
  await promisify(execFile)('cp', ['--reflink=never', source, target])
  await promisify(execFile)('sync', [target])
}

async function upload(cloud: Cloud, path: string, source: string): Promise<void> {
  const { size } = await stat(source)
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  const sending = request(
    { ...targetOf(cloud), method: 'PUT', path, headers: { ...headersOf(cloud), 'content-length': size } },
    (reply) => {
      reply.resume()
      reply.once('end', () => {
        if (reply.statusCode === 200) resolve()
        else reject(new Error(`an upload was answered ${String(reply.statusCode)}`))
      })
    },
  )
  sending.once('error', reject)
  await pipeline(createReadStream(source, { highWaterMark: MIB }), sending)
  await promise
}

async function download(cloud: Cloud, path: string): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  let received = 0
  const asking = request({ ...targetOf(cloud), method: 'GET', path, headers: headersOf(cloud) }, (reply) => {
    const counting = new Writable({
      write: (chunk: Buffer, _encoding, done) => {
        received += chunk.length
        done()
      },
    })
    pipeline(reply, counting).then(() => {
      if (received === SIZE_MIB * MIB) resolve()
      else reject(new Error(`a download of ${String(received)} bytes`))
    }, reject)
  })
  asking.once('error', reject)
  asking.end()
  await promise
}

function targetOf({ host, port }: Cloud): { readonly host: string; readonly port: number } {
  return { host, port }
}

function headersOf(cloud: Cloud): Record<string, string> {
  const path = Buffer.from('file').toString('base64url')
  return { authorization: cloud.headers['authorization'] ?? '', 'x-msb-file-path': path }
}
