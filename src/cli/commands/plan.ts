import { readFile } from 'node:fs/promises'
import type { Command } from 'commander'
import { getPlan, listPlans, setPlan } from '../../control/orgs/plans.ts'
import { PRICES, type Plan } from '../../domain/orgs/plan.ts'
import { runs, type Call } from '../command.ts'
import { operatorCommand, withOperator } from './operator.ts'
import { printJson, printTable } from './output.ts'
import { describeLimits } from './quota.ts'

const HELP = `
FILE holds {"limits": {…}, "prices": {…}}; \`plan show\` prints the same form. A limit that is absent or null is unlimited.
With prices, an included amount that is absent or null is 0: everything is charged.
Without prices, hours beyond the included ones can't be charged, so the included vCPU and memory hours become hard limits.
A change applies at once to every organization on the plan.

Limits, as whole numbers:
${describeLimits()}

Prices, as whole numbers of millionths of a cent:
${PRICES.map((name) => `  ${name}`).join('\n')}`

/** Defines `sandyard plan`, which manages plans: the limits and the prices of the organizations on a plan. */
export function definePlan(plan: Command): void {
  plan.addHelpText('after', HELP)
  runs(operatorCommand(plan, 'list', 'list the plans').option('--json', 'print JSON'), list)
  runs(operatorCommand(plan, 'show <name>', 'print the limits and prices of a plan as JSON'), show)
  runs(
    operatorCommand(plan, 'set <name> <file>', 'create or replace a plan from a JSON file; - is standard input'),
    set,
  )
}

async function list(call: Call): Promise<void> {
  await withOperator(call, async (deps) => {
    const plans = await listPlans(deps)
    if (call.switches.has('json')) return printJson(plans)
    const rows = plans.map(({ name, limits, prices, orgs }) => {
      const set = Object.entries(limits).filter(([, value]) => value !== null)
      const shown = set.map(([limit, value]) => `${limit}=${String(value)}`).join(' ')
      return [name, String(orgs), prices === null ? 'no' : 'yes', shown === '' ? null : shown]
    })
    printTable(['PLAN', 'ORGANIZATIONS', 'PRICES', 'LIMITS'], rows)
  })
}

async function show(call: Call): Promise<void> {
  const [name = ''] = call.args
  await withOperator(call, async (deps) => {
    const { limits, prices }: Plan = await getPlan(deps, name)
    printJson({ limits, prices })
  })
}

async function set(call: Call): Promise<void> {
  const [name = '', file = ''] = call.args
  const plan = parse(await readFile(file === '-' ? '/dev/stdin' : file, 'utf8'), file)
  await withOperator(call, async (deps) => {
    await setPlan(deps, name, plan)
    process.stdout.write(`the plan '${name}' is set\n`)
  })
}

function parse(text: string, file: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new Error(`${file} is not valid JSON`, { cause: error })
  }
}
