import type { SpanContext } from './trace-context.ts'

/** The samplers of OpenTelemetry. */
export const SAMPLERS = [
  'always_on',
  'always_off',
  'traceidratio',
  'parentbased_always_on',
  'parentbased_always_off',
  'parentbased_traceidratio',
] as const
export type SamplerName = (typeof SAMPLERS)[number]

/** Decides whether a trace is recorded. `parent` is the span of the client, or null if the trace begins here. */
export type Sampler = (traceId: string, parent: SpanContext | null) => boolean

/** Creates a sampler. `ratio` is the share of traces that the ratio samplers record. */
export function makeSampler(name: SamplerName, ratio: number): Sampler {
  const root = name.replace('parentbased_', '')
  const decide = (traceId: string): boolean => {
    if (root !== 'traceidratio') return root === 'always_on'
    // The decision depends on the trace's id alone, so all services with the same ratio record the same traces.
    return parseInt(traceId.slice(-8), 16) < ratio * 2 ** 32
  }
  return (traceId, parent) => (name.startsWith('parentbased_') && parent !== null ? parent.isSampled : decide(traceId))
}
