import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Registry } from 'prom-client'
import type { Config } from '../../config.ts'
import { refusalOfMetrics } from '../../http/requests/metrics-access.ts'
import { makeSingleFlight } from '../../lib/turns/single-flight.ts'
import { addDataFolderMetrics } from '../metrics/file-system-metrics.ts'
import { addBuildInfo, addNodeMetrics } from '../metrics/gauges.ts'
import { printStatus } from '../print-status.ts'
import { VERSION } from '../version.ts'

/** How long a request for metrics may take to arrive, in milliseconds. */
const REQUEST_TIMEOUT_MS = 10_000
/** The maximum number of open connections. A scraper needs one. */
const CONNECTIONS_MAX = 16

/**
 * Answers `GET /metrics` on the address of SANDYARD_WORKER_METRICS_ADDRESS, to those who may read the metrics. Without
 * the setting, the worker listens nowhere. Rejects if the address can't be used.
 */
export async function listenForMetrics(
  {
    workerMetricsAddress: address,
    metricsKey,
    dataDir,
  }: Pick<Config, 'workerMetricsAddress' | 'metricsKey' | 'dataDir'>,
  register: Registry,
): Promise<AsyncDisposable> {
  if (address === null) return { [Symbol.asyncDispose]: () => Promise.resolve() }
  addNodeMetrics(register)
  addBuildInfo(register, VERSION)
  addDataFolderMetrics(register, dataDir)
  const scrapes = makeSingleFlight<string>()
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const refusal = refusalOfMetrics(request, metricsKey)
    if (request.method !== 'GET' || request.url !== '/metrics') response.writeHead(404).end('only GET /metrics\n')
    else if (refusal !== null) response.writeHead(401).end(`${refusal}\n`)
    else {
      const text = await scrapes.join('metrics', () => register.metrics()).result
      response.writeHead(200, { 'content-type': register.contentType }).end(text)
    }
  }
  const server = createServer({ requestTimeout: REQUEST_TIMEOUT_MS }, (request, response) => {
    answer(request, response).catch(() => response.writeHead(500).end())
  })
  server.maxConnections = CONNECTIONS_MAX
  const shown = `${address.host.includes(':') ? `[${address.host}]` : address.host}:${String(address.port)}`
  try {
    server.listen(address.port, address.host)
    await once(server, 'listening')
  } catch (error) {
    throw new Error(`SANDYARD_WORKER_METRICS_ADDRESS: can't listen on ${shown}`, { cause: error })
  }
  printStatus(`metrics of this machine: http://${shown}/metrics`)
  return {
    async [Symbol.asyncDispose]() {
      server.close()
      server.closeAllConnections()
      await once(server, 'close')
    },
  }
}
