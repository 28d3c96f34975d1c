import { Type } from 'typebox'
import { defineOperation, jsonReply, type Operation } from '../operation.ts'

/** The operations for operators. They need no API key. */

export const HealthReply = Type.Object(
  { status: Type.String() },
  { title: 'Health', description: 'The process is alive.' },
)

export const ReadyReply = Type.Object(
  {
    status: Type.String(),
    reasons: Type.Array(Type.String(), {
      description: 'Why the process can not serve requests. Empty if it is ready.',
    }),
  },
  { title: 'Readiness', description: 'Whether the process can serve requests.' },
)

/** The operations for health, readiness, metrics and the API document. */
export const SERVICE_OPERATIONS = {
  get_health: defineOperation({
    id: 'get_health',
    method: 'GET',
    path: '/healthz',
    tag: 'Operation',
    summary: 'Whether the process is alive',
    reply: jsonReply(HealthReply, 'The process is alive.'),
    access: 'none',
  }),
  get_readiness: defineOperation({
    id: 'get_readiness',
    method: 'GET',
    path: '/readyz',
    tag: 'Operation',
    summary: 'Whether the process can serve requests',
    reply: jsonReply(ReadyReply, 'The process can serve requests.'),
    problems: ['unavailable'],
    access: 'none',
  }),
  get_metrics: defineOperation({
    id: 'get_metrics',
    method: 'GET',
    path: '/metrics',
    tag: 'Operation',
    summary: 'Metrics for Prometheus',
    description:
      'Needs the bearer token of SANDYARD_METRICS_KEY. Without that setting, only direct clients on the same machine get the metrics.',
    reply: { kind: 'text', status: 200, description: "Prometheus' text format." },
    access: 'none',
  }),
  get_document: defineOperation({
    id: 'get_document',
    method: 'GET',
    path: '/openapi.json',
    tag: 'Operation',
    summary: 'This document',
    reply: jsonReply(Type.Unknown(), 'An OpenAPI 3.1 document.'),
    access: 'none',
  }),
} as const satisfies Record<string, Operation>
