import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Command } from 'commander'
import type { Config } from '../../config.ts'
import type { BaseDeps } from '../../control/deps.ts'
import { makeKeyCache, type KeyCache } from '../../control/orgs/key-cache.ts'
import { OPERATOR_ACTOR, type OrgActor } from '../../domain/orgs/caller.ts'
import { systemClock } from '../../lib/clock.ts'
import { openLog } from '../open-log.ts'
import { systemRandom } from '../../lib/random.ts'
import { makeUuids } from '../../lib/uuid.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import { openSharedStore } from '../server/open-store.ts'
import { addSettings, UsageError, type Call } from '../command.ts'

// Operator commands open the database themselves, whether or not a server is running.

/** The dependencies of the control plane that operator commands need. */
export type OperatorDeps = Pick<BaseDeps, 'db' | 'clock' | 'random' | 'uuids' | 'log'> & { readonly keyCache: KeyCache }

/** Declares a subcommand with the flags that locate the database. */
export function operatorCommand(parent: Command, nameAndArgs: string, description: string): Command {
  return addOperatorSettings(parent.command(nameAndArgs).description(description))
}

/** Adds the flags that locate the database. */
export function addOperatorSettings(command: Command): Command {
  return addSettings(command, 'dataDir', 'logLevel')
}

/** Declares a subcommand for one organization: the one that `--org` names, or the only organization. */
export function orgCommand(parent: Command, nameAndArgs: string, description: string): Command {
  return operatorCommand(parent, nameAndArgs, description).option(
    '--org <slug>',
    'the organization; required when there are several',
  )
}

/**
 * Opens the database, runs `work` and closes the database. Creates no database. If a server runs on the data folder, connects to the
 * PostgreSQL that the server started.
 */
export async function withOperator(
  { config }: { readonly config: Config },
  work: (deps: OperatorDeps) => Promise<void>,
): Promise<void> {
  requireDatabase(config)
  const log = openLog(config)
  await using store = await openSharedStore(config, log)
  const uuids = makeUuids(systemClock, systemRandom)
  await work({ db: store.db, clock: systemClock, random: systemRandom, uuids, log, keyCache: makeKeyCache() })
}

/** Throws if there is no database yet. Opening the embedded one would make a data folder with an empty database. */
function requireDatabase({ databaseUrl, dataDir }: Config): void {
  if (databaseUrl !== null || existsSync(join(dataDir, 'database'))) return
  throw new UsageError(
    `${dataDir} has no database: start the server there once, or name the server's data folder by --data-dir or SANDYARD_DATA_DIR`,
  )
}

/** Runs `work` as `withOperator` does, with the organization of the call. */
export async function withOrg(
  { config, texts }: Call,
  work: (deps: OperatorDeps, acting: OrgActor) => Promise<void>,
): Promise<void> {
  await withOperator({ config }, async (deps) => {
    await work(deps, asOperator(await findOrg(deps.db, texts['org'])))
  })
}

/** The maximum number of organizations in an error message. */
const MAX_LISTED = 20

/**
 * Finds the organization with this slug, or the only organization if there is no slug. Throws `UsageError` for an
 * unknown slug. Also throws if the slug is missing and there are several organizations. The error lists the
 * organizations.
 */
export async function findOrg(db: Database, slug: string | undefined): Promise<orgs.OrgRow> {
  if (slug !== undefined) {
    const named = await db.asSystem((q) => orgs.findBySlug(q, slug))
    if (named !== null) return named
  }
  const listed = await db.asSystem((q) => orgs.list(q, MAX_LISTED + 1))
  const [only, ...others] = listed
  if (only === undefined) throw new Error('there is no organization yet: start the server once')
  if (slug === undefined && others.length === 0) return only
  const shown = listed.slice(0, MAX_LISTED).map((org) => org.slug)
  const slugs = `${shown.join(', ')}${listed.length > MAX_LISTED ? ', …' : ''}`
  throw new UsageError(
    slug === undefined
      ? `there are several organizations, so name one by --org: ${slugs}`
      : `there is no organization '${slug}'; there is ${slugs}`,
  )
}

/** The first organization, to which what concerns the whole installation is booked. Throws if there is none yet. */
export async function readFirstOrg(db: Database): Promise<orgs.OrgRow> {
  const first = await db.asSystem((q) => orgs.findFirst(q))
  if (first === null) throw new Error('there is no organization yet: start the server once')
  return first
}

/** Makes the actor with which the operator changes an organization. Audit events of the change name the operator. */
export function asOperator(org: Pick<orgs.OrgRow, 'id'>): OrgActor {
  return { org_id: org.id, actor: OPERATOR_ACTOR }
}
