export DIB_HEAT_AGENT_VENV=${DIB_HEAT_AGENT_VENV:-/opt/heat-agent}
