/**
 * The program that judges and passes on the connections of sandboxes whose policy needs more than addresses. It runs in
 * the router's namespace as a user of its own. The packet filter sends it the connections, and judges those that it opens.
 *
 * Arguments: the descriptor of the listening socket, and the user id to become.
 */
import { createServer } from 'node:net'
import { systemClock } from '../../lib/clock.ts'
import { makeFairTurns } from '../../lib/turns/fair-turns.ts'
import { CONNECTION_MEMORY_BYTES, makeConnectionMemory } from './connection-memory.ts'
import { makeBodyBudgets } from './intercept/body-budget.ts'
import type { EgressEvent, EgressOrder } from './messages.ts'
import { makeNameQuestions } from './name-questions.ts'
import { makeSandboxPreparer, type EgressSandbox } from './prepare-sandbox.ts'
import { makeSandboxSockets } from './sandbox-sockets.ts'
import { makeSandboxTurn, TURN_BUDGET_MS } from './sandbox-turns.ts'
import { serveConnection } from './serve-connection.ts'
import { resetSocket } from '../../lib/reset-socket.ts'

/** What all connections together may keep of bodies that are changed as a whole, and for how long if no more comes. */
const BODIES = { capacity: 128 * 1024 * 1024, idleLimitMs: 60_000 } as const

const [fd, user] = process.argv.slice(2).map(Number)
if (fd === undefined || user === undefined) throw new Error('two numbers are expected')
becomeUser(user)
serve(fd)

/** Gives up all rights. Everything that the program imports was read before. */
function becomeUser(id: number): void {
  process.setgroups?.([])
  process.setgid?.(id)
  process.setuid?.(id)
}

function serve(listener: number): void {
  const budgetOf = makeBodyBudgets(BODIES)
  const memoryOf = makeConnectionMemory(CONNECTION_MEMORY_BYTES)
  const turns = makeFairTurns({ budgetMs: TURN_BUDGET_MS, nowMs: () => systemClock.monotonicMs() })
  const prepare = makeSandboxPreparer(systemClock)
  const sandboxes = new Map<string, Promise<EgressSandbox | null>>()
  const sockets = makeSandboxSockets()
  const questions = makeNameQuestions((question) => {
    tell({ kind: 'ask', ...question })
  })

  const server = createServer({ allowHalfOpen: true, noDelay: true, pauseOnConnect: true }, (client) => {
    const { remoteAddress: sandbox = '' } = client
    sockets.add(sandbox, client)
    client.on('error', () => client.destroy())
    void (sandboxes.get(sandbox) ?? Promise.resolve(null)).then(async (settings) => {
      if (settings === null) resetSocket(client)
      else await serveConnection(client, settings, depsOf(sandbox))
    })
  })

  process.on('message', (order: EgressOrder) => {
    if (order.kind === 'names') questions.answer(order.id, order.names)
    else if (order.kind === 'confirm') {
      void Promise.all(sandboxes.values()).then(() => {
        tell({ kind: 'confirmed', id: order.id })
      })
    } else if (order.settings === null) {
      sandboxes.delete(order.address)
      sockets.destroy(order.address)
    } else {
      const prepared = prepare(order.address, order.settings).catch((error: unknown) => {
        process.stderr.write(`a sandbox's interception is unusable: ${String(error)}\n`)
        return null
      })
      sandboxes.set(order.address, prepared)
    }
  })
  // Without the worker, nobody answers questions about names.
  process.on('disconnect', () => process.exit(0))
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined) // the worker ends it
  server.listen({ fd: listener }, () => {
    tell({ kind: 'ready' })
  })

  function depsOf(sandbox: string): Parameters<typeof serveConnection>[2] {
    const memory = memoryOf(sandbox)
    return {
      budget: budgetOf(sandbox),
      memory,
      turn: makeSandboxTurn(turns, sandbox, memory),
      namesOf: (address) => questions.ask(sandbox, address),
      onRefused: (refusal) => {
        tell({ kind: 'refused', sandbox, refusal })
      },
    }
  }

  function tell(event: EgressEvent): void {
    process.send?.(event)
  }
}
