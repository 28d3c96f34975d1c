/** Plans: the limits and prices that organizations share. */
import { INT32_MAX, INT53_MAX } from '../requests/request-bounds.ts'
import { METRIC_DEFINITIONS, METRICS, type PriceTable } from '../usage/pricing.ts'
import { isLimitName, LIMIT_RULE, LIMITS, type LimitName } from './quota.ts'
import { describeSeen, type Refusal } from '../refusal.ts'

/**
 * The limits that a plan or an organization sets; null means unlimited. For an absent limit, an organization has the
 * limit of its plan, and a plan has no limit.
 */
export type SetLimits = Readonly<Partial<Record<LimitName, number | null>>>

/** The terms of a plan. Without prices, usage can't be charged, so the plan's included hours are hard limits. */
export type PlanTerms = { readonly limits: SetLimits; readonly prices: PriceTable | null }
export type Plan = PlanTerms & { readonly name: string }

export const PLAN_NAME_RULE = '1 to 63 lowercase letters, digits and single hyphens, none at an end'
const PLAN_NAME_SHAPE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/
const PLAN_NAME_MAX_CHARS = 63

/** Whether a text is a valid plan name. */
export function isPlanName(text: string): boolean {
  return text.length <= PLAN_NAME_MAX_CHARS && PLAN_NAME_SHAPE.test(text)
}

export const PRICES: readonly (keyof PriceTable)[] = METRICS.map((metric) => METRIC_DEFINITIONS[metric].price)

/** Parses the terms of a plan from JSON. The refusal names the field that is unknown or has an invalid value. */
export function parsePlanTerms(json: unknown): { readonly terms: PlanTerms } | { readonly refusal: Refusal } {
  const parts = entriesOf(json)
  if (parts === null) return refusing('the plan', json, 'an object with limits and prices')
  const unknown = parts.find(([name]) => name !== 'limits' && name !== 'prices')
  if (unknown !== undefined) return refusing(unknown[0], unknown[1], 'limits and prices, and nothing else')
  const { limits = {}, prices = null } = Object.fromEntries(parts)
  const refusal = refuseLimits(limits) ?? refusePrices(prices)
  if (refusal !== null) return { refusal }
  return { terms: { limits, prices } as PlanTerms } // both members are checked above
}

/**
 * Parses a limit's value: a whole number, or `unlimited`, for which it returns null. Returns undefined for any other
 * text.
 */
export function parseLimitValue(word: string): number | null | undefined {
  if (word === 'unlimited') return null
  return /^\d{1,10}$/.test(word) && Number(word) <= INT32_MAX ? Number(word) : undefined
}

function refuseLimits(limits: unknown): Refusal | null {
  const entries = entriesOf(limits)
  if (entries === null) return refusing('limits', limits, 'an object').refusal
  for (const [name, value] of entries) {
    if (!isLimitName(name)) return refusing(`limits.${name}`, value, `one of ${Object.keys(LIMITS).join(', ')}`).refusal
    const isLimit = value === null || isWhole(value, INT32_MAX)
    if (!isLimit) return refusing(`limits.${name}`, value, `${LIMIT_RULE} as null`).refusal
  }
  return null
}

function refusePrices(prices: unknown): Refusal | null {
  if (prices === null) return null
  const entries = entriesOf(prices)
  if (entries === null) return refusing('prices', prices, 'an object, or null for a plan without prices').refusal
  for (const [name, value] of entries) {
    if (!PRICES.some((price) => price === name))
      return refusing(`prices.${name}`, value, `one of ${PRICES.join(', ')}`).refusal
    if (!isWhole(value, INT53_MAX))
      return refusing(`prices.${name}`, value, 'a whole number of millionths of a cent from 0').refusal
  }
  return null
}

function entriesOf(json: unknown): readonly (readonly [string, unknown])[] | null {
  return typeof json === 'object' && json !== null && !Array.isArray(json) ? Object.entries(json) : null
}

function isWhole(value: unknown, max: number): boolean {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= max
}

function refusing(field: string, seen: unknown, accepted: string): { readonly refusal: Refusal } {
  return { refusal: { code: 'invalid_request', field, seen: describeSeen(seen), accepted } }
}
