import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { sessionsOf } from '../support/external-postgres.ts'
import { noteSurvival, assertSurvivesFault, type SurvivalResult } from '../support/fault-invariants.ts'
import { onServer } from '../support/postgres.ts'
import { freezeTree, sendSignal } from '../support/process-tree.ts'
import { readPostmasterPid, startServer, type RealServer } from '../support/server.ts'
import { superuserUrl } from '../support/server-database.ts'
import { waitUntil } from '../support/wait.ts'

// The embedded PostgreSQL dies or freezes while clients use the server.

/** How many times each fault is injected. */
const ROUNDS = 2
const FREEZE_MS = 30_000

describe('the embedded PostgreSQL', () => {
  let server: RealServer
  let adminUrl = ''

  before(async () => {
    server = await startServer({ SANDYARD_DRIVER: 'simulated', SANDYARD_LOG_LEVEL: 'warn' })
    adminUrl = superuserUrl(server)
  })
  after(() => server.close())

  const deaths = [
    { signal: 'SIGINT', fault: 'fast shutdown of the embedded PostgreSQL' },
    { signal: 'SIGQUIT', fault: 'immediate shutdown of the embedded PostgreSQL' },
    { signal: 'SIGKILL', fault: 'kill -9 of the postmaster' },
  ] as const
  for (const { signal, fault } of deaths) {
    test(`${fault}: requests are refused but not lost, and everything recovers after a restart`, async () => {
      const survivals: SurvivalResult[] = []
      for (let round = 0; round < ROUNDS; round++) {
        survivals.push(
          await assertSurvivesFault(server, adminUrl, async () => {
            const dead = postmasterOf(server)
            sendSignal(dead, signal)
            await waitUntil(() => ![0, dead].includes(postmasterOf(server)), 60_000)
          }),
        )
      }
      noteSurvival(fault, survivals, ROUNDS)
    })
  }

  test('kill -9 of one session makes PostgreSQL end all sessions: requests are refused but not lost, and everything recovers', async () => {
    const survivals: SurvivalResult[] = []
    for (let round = 0; round < ROUNDS; round++) {
      survivals.push(
        await assertSurvivesFault(server, adminUrl, async () => {
          const [session] = sessionsOf(postmasterOf(server))
          if (session === undefined) throw new Error('no session serves a client')
          sendSignal(session, 'SIGKILL')
          await waitUntil(() => !sessionsOf(postmasterOf(server)).includes(session))
        }),
      )
    }
    noteSurvival('kill -9 of one session of PostgreSQL', survivals, ROUNDS)
  })

  test('sessions are ended one by one: some requests get 503, and nothing is lost or done twice', async () => {
    let ended = 0
    const survival = await assertSurvivesFault(server, adminUrl, async () => {
      const pids = sessionsOf(postmasterOf(server))
      for (const pid of pids) {
        await onServer(adminUrl, (admin) => admin.query('select pg_terminate_backend($1)', [pid]))
        ended += 1
        await systemClock.sleep(50)
      }
    })
    noteSurvival('pg_terminate_backend of each session, one by one', [survival], ended)
  })

  test(`a server that is frozen for ${String(FREEZE_MS / 1000)} s: requests end in 503 within their time limit, and everything recovers when it continues`, async () => {
    const survival = await assertSurvivesFault(server, adminUrl, () => freezeTree(postmasterOf(server), FREEZE_MS))
    noteSurvival('SIGSTOP of all of PostgreSQL for 30 s', [survival], 1)
  })
})

function postmasterOf({ dataDir }: RealServer): number {
  return readPostmasterPid(dataDir) ?? 0
}
