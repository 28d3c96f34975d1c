import { once } from 'node:events'
import { createServer, request, type IncomingMessage, type RequestListener, type Server } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import type { Sandbox } from '../../src/domain/sandboxes/sandbox.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makePreviewProxy } from '../../src/preview/preview-proxy.ts'
import { makeSimulatedDriver } from '../../src/worker/drivers/simulated.ts'
import { waitUntil } from './wait.ts'
import { makeWorkerWorld, type WorkerWorld } from './worker-world.ts'

type PreviewProxyInput = Parameters<typeof makePreviewProxy>[0]

/** A running sandbox whose ports all lead to a web server of the test. */
export type PreviewWorld = {
  readonly control: WorkerWorld['control']
  readonly box: Sandbox
  /** The `Host` of the port 3000. */
  readonly host: string
  /** Starts a server with a proxy of its own. Resolves with its port. */
  openDoor(control?: Partial<PreviewProxyInput['control']>, rates?: PreviewProxyInput['rates']): Promise<number>
  close(): Promise<void>
}

export async function makePreviewWorld(sandbox: RequestListener): Promise<PreviewWorld> {
  const world = await makeWorkerWorld()
  const { deps } = world.control
  const driver = makeSimulatedDriver({ clock: systemClock })
  const closers: (() => void)[] = []
  const listen = async (server: Server): Promise<number> => {
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    closers.push(() => server.close().closeAllConnections())
    return (server.address() as AddressInfo).port
  }
  const portOfSandbox = await listen(createServer(sandbox))
  deps.nearWorkers.add(world.worker_id, async () => {
    const socket = connect(portOfSandbox, '127.0.0.1')
    await once(socket, 'connect')
    return socket
  })
  world.runWorker(driver)
  const box = await world.create()
  await waitUntil(async () => (await world.statusOf(box.id)).status === 'running')
  return {
    control: world.control,
    box,
    host: `3000-${box.slug}.localhost`,
    async openDoor(control = {}, rates) {
      const proxy = makePreviewProxy({
        control: { ...deps, ...control },
        domain: 'localhost',
        scheme: 'http',
        addressOf: ({ socket }) => socket.remoteAddress,
        ...(rates === undefined ? {} : { rates }),
      })
      closers.push(() => proxy.close())
      return await listen(createServer((asked, reply) => proxy.serve(asked, reply)).on('upgrade', (...upgrade) => proxy.upgrade(...upgrade))) // prettier-ignore
    },
    async close() {
      for (const close of closers) close()
      await world.close()
      await driver.close()
    },
  }
}

/** Sends a request without a body. Resolves with the head of the reply. */
export async function getPreview(
  port: number,
  path: string,
  headers: Record<string, string>,
): Promise<IncomingMessage> {
  const asked = request({ host: '127.0.0.1', port, path, headers })
  asked.end()
  const [reply] = await once(asked, 'response')
  return reply
}
