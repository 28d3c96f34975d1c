import type { Command } from 'commander'
import { SettingError } from '../../config.ts'
import { changeOrgPlan, createOrg, listAllOrgs, resumeOrg, suspendOrg } from '../../control/orgs/orgs.ts'
import { replaceAuthority } from '../../control/orgs/intercept-authorities.ts'
import { allowNetworkRange, disallowNetworkRange, listNetworkRanges } from '../../control/orgs/network-ranges.ts'
import { runs, type Call } from '../command.ts'
import { describeUnknownPlan } from '../describe-unknown-plan.ts'
import { asOperator, findOrg, operatorCommand, withOperator } from './operator.ts'
import { printJson, printTable } from './output.ts'

/** Defines `sandyard org`, which manages the organizations of an installation. */
export function defineOrg(org: Command): void {
  org.addHelpText('after', '\nEach organization has its own sandboxes, volumes, members, keys, limits and bills.')
  runs(
    operatorCommand(org, 'create <name>', 'create an organization with its owner')
      .requiredOption('--owner <email>', 'the e-mail address of the owner')
      .option('--slug <slug>', 'the short name for commands; made from the name unless given')
      .option(
        '--plan <plan>',
        'the plan; see `sandyard plan list` (default: SANDYARD_DEFAULT_PLAN, which is `standard`)',
      ),
    create,
  )
  runs(operatorCommand(org, 'list', 'list the organizations').option('--json', 'print JSON'), list)
  runs(
    operatorCommand(
      org,
      'suspend <slug>',
      'refuse new starts and stop its sandboxes within seconds; nothing is deleted',
    ).option('--reason <reason>', 'the reason, for the event'),
    suspend,
  )
  runs(operatorCommand(org, 'resume <slug>', 'allow starts again; nothing starts by itself'), resume)
  runs(operatorCommand(org, 'show <slug>', 'show an organization with its plan and open network ranges as JSON'), show)
  runs(
    operatorCommand(
      org,
      'allow <slug> [range]',
      'open addresses that SANDYARD_NETWORK_DENY denies, for sandboxes that it starts from now on; list them if no range is given',
    ),
    allow,
  )
  runs(operatorCommand(org, 'disallow <slug> <range>', 'close addresses that `org allow` opened'), disallow)
  runs(
    operatorCommand(
      org,
      'replace-ca <slug>',
      'make a new certificate authority for intercepted TLS connections of runs that start from now on',
    ),
    replaceCa,
  )
  runs(operatorCommand(org, 'plan <slug> <plan>', 'move it to another plan, with its limits and prices, at once'), move)
}

async function create(call: Call): Promise<void> {
  const { args: [name = ''], texts } = call // prettier-ignore
  const { owner = '', slug = null, plan = call.config.defaultPlan } = texts
  await withOperator(call, async (deps) => {
    const unknownPlan = texts['plan'] === undefined ? await describeUnknownPlan(deps, call.config) : null
    if (unknownPlan !== null) throw new SettingError(unknownPlan)
    const made = await createOrg(deps, { name, owner, slug, plan })
    process.stdout.write(
      `created the organization '${made.slug}'; create a key for it with: sandyard key create --org ${made.slug}\n`,
    )
  })
}

async function list(call: Call): Promise<void> {
  await withOperator(call, async (deps) => {
    const all = await Array.fromAsync(listAllOrgs(deps))
    if (call.switches.has('json')) return printJson(all)
    const rows = all.map(({ slug, name, plan, quota_overrides, suspended_at }) => [
      slug,
      name,
      plan,
      String(Object.keys(quota_overrides).length),
      suspended_at?.toISOString() ?? null,
    ])
    printTable(['SLUG', 'NAME', 'PLAN', 'OVERRIDES', 'SUSPENDED'], rows)
  })
}

async function suspend(call: Call): Promise<void> {
  const [slug = ''] = call.args
  await withOperator(call, async (deps) => {
    await suspendOrg(deps, asOperator(await findOrg(deps.db, slug)), call.texts['reason'] ?? null)
    process.stdout.write(`${slug} is suspended: its sandboxes are being stopped, and nothing starts\n`)
  })
}

async function resume(call: Call): Promise<void> {
  const [slug = ''] = call.args
  await withOperator(call, async (deps) => {
    await resumeOrg(deps, asOperator(await findOrg(deps.db, slug)))
    process.stdout.write(`${slug} may start sandboxes\n`)
  })
}

async function show(call: Call): Promise<void> {
  const [slug = ''] = call.args
  await withOperator(call, async (deps) => {
    const { id } = await findOrg(deps.db, slug)
    const org = (await Array.fromAsync(listAllOrgs(deps))).find((one) => one.id === id)
    printJson({ ...org, network_allow: await listNetworkRanges(deps, asOperator({ id })) })
  })
}

async function allow(call: Call): Promise<void> {
  const [slug = '', range = null] = call.args
  await withOperator(call, async (deps) => {
    const acting = asOperator(await findOrg(deps.db, slug))
    if (range !== null) await allowNetworkRange(deps, acting, range)
    const open = await listNetworkRanges(deps, acting)
    process.stdout.write(open.map((one) => `${one}\n`).join(''))
  })
}

async function disallow(call: Call): Promise<void> {
  const [slug = '', range = ''] = call.args
  await withOperator(call, async (deps) => {
    await disallowNetworkRange(deps, asOperator(await findOrg(deps.db, slug)), range)
    process.stdout.write(`${range} is closed for sandboxes that ${slug} starts from now on\n`)
  })
}

async function replaceCa(call: Call): Promise<void> {
  const [slug = ''] = call.args
  await withOperator(call, async (deps) => {
    await replaceAuthority(deps, asOperator(await findOrg(deps.db, slug)))
    process.stdout.write(`${slug} gets a new certificate authority with its next start that needs one\n`)
  })
}

async function move(call: Call): Promise<void> {
  const [slug = '', plan = ''] = call.args
  await withOperator(call, async (deps) => {
    await changeOrgPlan(deps, asOperator(await findOrg(deps.db, slug)), plan)
    process.stdout.write(`${slug} is on the plan '${plan}'\n`)
  })
}
