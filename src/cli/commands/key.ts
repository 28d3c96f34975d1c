import { createApiKey, listApiKeys, revokeApiKey } from '../../control/orgs/api-keys.ts'
import { SCOPES, type Scope } from '../../domain/orgs/caller.ts'
import { DURATION_RULE, parseDurationMs } from '../../domain/duration.ts'
import { asId, type ApiKeyId } from '../../domain/ids.ts'
import { isUuid } from '../../lib/uuid.ts'
import { openOperatorDeps, type OperatorDeps } from './borrow-control.ts'
import { findOrg, asOperator } from './choose-org.ts'
import { UsageError, type Call, type Command } from './command.ts'
import { printList } from './print-list.ts'

export const key: Command = {
  usage:
    'key create [--name N] [--scopes read,write,admin] [--expires-in 30d | --expires-at T] | list | revoke ID [--org SLUG]',
  summary: 'make an API key and print it, which happens once; list the keys; end one',
  async run(call) {
    const [verb, id, ...rest] = call.args
    const act = rest.length > 0 ? null : verb === 'revoke' ? revoking(id) : id === undefined ? VERBS[verb ?? ''] : null
    if (act === null || act === undefined) throw new UsageError(`usage: sandyard ${key.usage}`)
    await using control = await openOperatorDeps(call.config)
    await act(control, call)
    return 0
  },
}

type Act = (control: OperatorDeps, call: Call) => Promise<void>

const VERBS: Readonly<Record<string, Act>> = { create, list }

async function create(control: OperatorDeps, { texts }: Call): Promise<void> {
  const scopes = readScopes(texts['scopes'])
  const expires_at = readExpiry(texts, control.clock.now())
  const org = await findOrg(control.db, texts['org'])
  const name = texts['name'] ?? 'made by sandyard key create'
  const made = await createApiKey(control, asOperator(org), { name, scopes, expires_at })
  process.stdout.write(`${made.key}\n`)
}

async function list(control: OperatorDeps, { texts }: Call): Promise<void> {
  const org = await findOrg(control.db, texts['org'])
  await printList(
    ['ID', 'NAME', 'SCOPES', 'CREATED', 'EXPIRES', 'LAST USED', 'REVOKED'],
    (input) => listApiKeys(control, asOperator(org), input),
    ({ id, name, scopes, created_at, ...at }) => [
      id,
      name,
      scopes.join(','),
      ...[created_at, at.expires_at, at.last_used_at, at.revoked_at].map((time) => time?.toISOString() ?? null),
    ],
  )
}

function revoking(id: string | undefined): Act | null {
  if (id === undefined || !isUuid(id)) return null
  return async (control, { texts }) => {
    const org = await findOrg(control.db, texts['org'])
    await revokeApiKey(control, asOperator(org), asId<ApiKeyId>(id.toLowerCase()))
    process.stdout.write(`${id} is revoked\n`)
  }
}

function readScopes(text: string | undefined): readonly Scope[] {
  if (text === undefined) return SCOPES
  const words = text.split(',')
  const scopes = SCOPES.filter((scope) => words.includes(scope))
  if (new Set(words).size !== scopes.length) throw new UsageError(`--scopes takes some of ${SCOPES.join(',')}`)
  return scopes
}

/** RFC 3339 with its offset, so that a time means the same wherever the command runs. */
const INSTANT = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:\d{2})$/

function readExpiry(texts: Call['texts'], now: Date): Date | null {
  const [within, at] = [texts['expires-in'], texts['expires-at']]
  if (within !== undefined && at !== undefined) throw new UsageError('--expires-in and --expires-at exclude each other')
  if (within !== undefined) {
    const ms = parseDurationMs(within)
    if (ms === null) throw new UsageError(`--expires-in takes ${DURATION_RULE}`)
    return new Date(now.getTime() + ms)
  }
  if (at === undefined) return null
  const instant = INSTANT.test(at) ? new Date(at) : null
  if (instant === null || Number.isNaN(instant.getTime()))
    throw new UsageError('--expires-at takes a time with its offset, such as 2030-01-31T12:00:00Z')
  return instant
}
