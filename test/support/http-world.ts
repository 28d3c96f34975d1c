import { PassThrough, Readable } from 'node:stream'
import type { FastifyInstance } from 'fastify'
import { Registry } from 'prom-client'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import { asId, type ApiKeyId, type EventId, type OrgId, type SandboxId } from '../../src/domain/ids.ts'
import { Problem } from '../../src/domain/problem.ts'
import { projectSpec } from '../../src/domain/spec/project-spec.ts'
import type { Sandbox } from '../../src/domain/sandboxes/sandbox.ts'
import { DEFAULT_SERVER_SETTINGS, makeServer, type ServerDeps } from '../../src/http/server/server.ts'
import type { EventRow } from '../../src/control/events/read-events.ts'
import type { Org } from '../../src/control/orgs/orgs.ts'
import type { SandboxRef } from '../../src/control/sandboxes/read-sandboxes.ts'
import { callFakes, type UseCases } from './use-cases.ts'
import type { ControlDeps } from '../../src/control/make-deps.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { openChannelOver } from './channel.ts'
import { DEFAULT_SPEC_FOR_TESTS } from './spec.ts'

export const KEY = 'msb_test_world'
export const SANDBOX_ID = '01890a5d-ac96-774b-bcce-b302099a8057'
const ORG = asId<OrgId>('01890a5d-ac96-774b-bcce-b302099a8000')

/** The use cases and settings that a test may replace. */
export type WorldOptions = {
  readonly useCases?: Partial<UseCases>
  readonly server?: Partial<ServerDeps>
}

/** Makes an API server without a database, for tests of the transport alone. Its fake use cases know one sandbox. */
export function makeHttpWorld(options: WorldOptions = {}): FastifyInstance {
  const uuids = makeUuids(systemClock, systemRandom)
  return makeServer({
    call: callFakes(nothing(), { ...oneSandbox(), ...options.useCases }),
    log: makeLog('silent'),
    uuids,
    metrics: new Registry(),
    unreadyReasons: () => Promise.resolve([]),
    settings: DEFAULT_SERVER_SETTINGS,
    ...options.server,
  })
}

/** The headers with the only key that the world knows. */
export const asCaller = { authorization: `Bearer ${KEY}` }

/** The only sandbox of the world. */
export const theSandbox: Sandbox = {
  id: asId<SandboxId>(SANDBOX_ID),
  org_id: ORG,
  name: 'demo',
  slug: 'amber-harbor-k3f9',
  status: 'running',
  ephemeral: false,
  created_at: new Date('2026-11-21T10:00:00Z'),
  last_failure_message: null,
  started_at: new Date('2026-11-21T10:00:01Z'),
  status_reason: null,
  stopped_at: null,
  run_id: null,
  isolation: null,
  spec_json: JSON.stringify(projectSpec(DEFAULT_SPEC_FOR_TESTS)),
}

/** Dependencies that throw when they are used: no use case of this world needs them. */
function nothing(): ControlDeps {
  const untouched: ControlDeps = new Proxy(Object.create(null), {
    get: (_target, name) => {
      throw new Error(`this world has no ${String(name)}`)
    },
  })
  return untouched
}

function oneSandbox(): Partial<UseCases> {
  const find = (ref: SandboxRef): Sandbox => {
    if ('id' in ref ? ref.id === theSandbox.id : ref.name === theSandbox.name) return theSandbox
    throw new Problem('sandbox_not_found')
  }
  const event: EventRow = {
    id: asId<EventId>(SANDBOX_ID),
    org_id: ORG,
    timestamp: new Date('2026-11-21T10:00:00Z'),
    category: 'sandbox',
    event_type: 'sandbox_created',
    actor: { kind: 'api_key', api_key_id: SANDBOX_ID, name: 'first' },
    payload: {},
  }
  const org: Org = {
    id: ORG,
    name: 'org',
    slug: 'org',
    mfa_required: false,
    role: 'owner',
    created_at: new Date(0),
    updated_at: new Date(0),
  }
  return {
    authenticate: (key) => Promise.resolve(key === KEY ? caller() : null),
    createSandbox: (_caller, { name, slug }) =>
      Promise.resolve({ ...theSandbox, name: name ?? 'made', slug: slug ?? 'made' }),
    getSandbox: async (_caller, ref) => find(ref),
    listSandboxes: () => Promise.resolve({ items: [theSandbox], nextCursor: null }),
    startSandbox: async (_caller, ref) => find(ref),
    waitForSandbox: async (_caller, ref) => {
      const found = find(ref)
      return {
        start: (onEnd) => {
          const ending = setImmediate(onEnd, found)
          return () => clearImmediate(ending)
        },
      }
    },
    stopSandbox: async (_caller, ref) => find(ref),
    renameSandbox: async (_caller, ref, change) => ({ ...find(ref), ...change }),
    deleteSandbox: async (_caller, ref) => {
      find(ref)
    },
    getOrg: () => Promise.resolve(org),
    listEvents: () => Promise.resolve({ items: [event], nextCursor: null }),
    getEvent: () => Promise.resolve(event),
    readLogs: () => Promise.resolve(Readable.from([{ entries: [], isLast: true }])),
    openChannel: () => openChannelOver(new PassThrough()),
  }
}

function caller(): Caller {
  const api_key_id = asId<ApiKeyId>(SANDBOX_ID)
  return {
    org_id: ORG,
    api_key_id,
    role: 'owner',
    scope: 'admin',
    actor: { kind: 'api_key', api_key_id, name: 'first' },
  }
}
