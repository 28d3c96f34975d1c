import { Type } from 'typebox'
import { json, operation, type Operation } from '../operation.ts'
import { HealthReply, ReadyReply } from './probes.ts'

/** What the process says of itself; open to everybody. */
export const SERVICE_OPERATIONS = {
  get_health: operation({
    id: 'get_health',
    method: 'GET',
    path: '/healthz',
    tag: 'Operation',
    summary: 'Whether the process is alive',
    reply: json(HealthReply, 'It is.'),
    access: 'none',
  }),
  get_readiness: operation({
    id: 'get_readiness',
    method: 'GET',
    path: '/readyz',
    tag: 'Operation',
    summary: 'Whether the process can serve requests',
    reply: json(ReadyReply, 'It can.'),
    problems: ['unavailable'],
    access: 'none',
  }),
  get_metrics: operation({
    id: 'get_metrics',
    method: 'GET',
    path: '/metrics',
    tag: 'Operation',
    summary: 'Metrics for Prometheus',
    reply: { kind: 'text', status: 200, description: "Prometheus' text format." },
    access: 'none',
  }),
  get_document: operation({
    id: 'get_document',
    method: 'GET',
    path: '/openapi.json',
    tag: 'Operation',
    summary: 'This document',
    reply: json(Type.Unknown(), 'An OpenAPI 3.1 document.'),
    access: 'none',
  }),
} as const satisfies Record<string, Operation>
