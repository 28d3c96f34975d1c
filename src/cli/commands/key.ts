import { Option, type Command } from 'commander'
import { createApiKey, listApiKeys, revokeApiKey, type ApiKey } from '../../control/orgs/api-keys.ts'
import { DURATION_RULE, parseDurationMs } from '../../domain/duration.ts'
import { asId, type ApiKeyId } from '../../domain/ids.ts'
import { SCOPES, type Scope } from '../../domain/orgs/caller.ts'
import { systemClock } from '../../lib/clock.ts'
import { isUuid } from '../../lib/uuid.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { orgCommand, withOrg } from './operator.ts'
import { printPages } from './output.ts'

/** Defines `sandyard key`, which manages the API keys of an organization. */
export function defineKey(key: Command): void {
  runs(
    orgCommand(key, 'create', 'create an API key and print it; it is shown only this once')
      .option('--name <name>', 'a name for the list of keys')
      .option('--scopes <scopes>', `some of ${SCOPES.join(',')}; all unless given`)
      .option('--expires-in <duration>', 'how long the key is valid, such as 30d')
      .addOption(
        new Option('--expires-at <time>', 'until when it is valid, such as 2030-01-31T12:00:00Z').conflicts(
          'expiresIn',
        ),
      ),
    create,
  )
  runs(
    orgCommand(key, 'list', 'list the valid keys, without their secrets').option(
      '--all',
      'also revoked and expired keys',
    ),
    list,
  )
  runs(orgCommand(key, 'revoke <id>', 'revoke a key, at once and for good'), revoke)
}

async function create(call: Call): Promise<void> {
  const scopes = readScopes(call.texts['scopes'])
  const expires_at = readExpiry(call.texts, systemClock.now())
  const name = call.texts['name'] ?? 'made by sandyard key create'
  await withOrg(call, async (deps, acting) => {
    const made = await createApiKey(deps, acting, { name, scopes, expires_at })
    process.stdout.write(`${made.key}\n`)
  })
}

async function list(call: Call): Promise<void> {
  const now = systemClock.now()
  await withOrg(call, async (deps, acting) => {
    await printPages(
      ['ID', 'NAME', 'SCOPES', 'CREATED', 'EXPIRES', 'LAST USED', 'REVOKED'],
      async (input) => {
        const page = await listApiKeys(deps, acting, input)
        return call.switches.has('all') ? page : { ...page, items: page.items.filter((key) => isValid(key, now)) }
      },
      ({ id, name, scopes, created_at, ...at }) => [
        id,
        name,
        scopes.join(','),
        ...[created_at, at.expires_at, at.last_used_at, at.revoked_at].map((time) => time?.toISOString() ?? null),
      ],
    )
  })
}

function isValid({ revoked_at, expires_at }: ApiKey, now: Date): boolean {
  return revoked_at === null && (expires_at === null || expires_at > now)
}

async function revoke(call: Call): Promise<void> {
  const [id = ''] = call.args
  if (!isUuid(id)) throw new UsageError(`'${id}' is not the id of a key; see: sandyard key list`)
  await withOrg(call, async (deps, acting) => {
    await revokeApiKey(deps, acting, asId<ApiKeyId>(id.toLowerCase()))
    process.stdout.write(`${id} is revoked\n`)
  })
}

function readScopes(text: string | undefined): readonly Scope[] {
  if (text === undefined) return SCOPES
  const words = text.split(',')
  const scopes = SCOPES.filter((scope) => words.includes(scope))
  if (new Set(words).size !== scopes.length) throw new UsageError(`--scopes takes some of ${SCOPES.join(',')}`)
  return scopes
}

/** RFC 3339 with an offset. A time without offset would depend on the machine's time zone. */
const INSTANT = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:\d{2})$/

function readExpiry(texts: Call['texts'], now: Date): Date | null {
  const [within, at] = [texts['expires-in'], texts['expires-at']]
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
